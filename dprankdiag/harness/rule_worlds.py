"""A world for each rule of evidence that a recording can show; the other rules are about counters and gauges.

Sums of what the rules say: who is late may only have inherited it (1), groups may be unknown (2), kernels may start
early (3), collectives may hide behind work (4), some do not block (5), some hold the host (6), equal work may be
rare (7), a GPU may be slow for memory alone (8), padding spreads load (9), links and receivers differ (10), clocks err
(11), recordings begin apart (12), steps differ in kind (13), hosts may meet unseen (14), calls may be missing (15),
healthy chips differ (16), profiles may be uneven (17), fabrics need a reference (20), a host is one culprit (21).
"""

from __future__ import annotations

from dataclasses import replace

from dprankdiag.harness.cases import Case
from dprankdiag.harness.faults import (
    fabric,
    host_late,
    load_context,
    load_requests,
    receiver_queue,
    slow_gpu,
    slow_link,
)
from dprankdiag.harness.suites import WORLDS
from dprankdiag.harness.world import World


def _rule(number: int, name: str, world: World, *, silent: bool = False) -> Case:
    return Case(f"{number:02d}-{name}", world, "R", silent=silent, rule=number)


def _named(number: int, *names: str) -> list[Case]:
    return [_rule(number, name, WORLDS[name]) for name in names]


RULE_WORLDS: tuple[Case, ...] = (
    *_named(1, "attention_tp_load"),
    _rule(1, "victim_of_its_partner", World(seed=101, attention_tp=4, faults=(slow_gpu(6, 1.3),))),
    *_named(2, "custom_all_reduce_gpu"),
    _rule(
        2,
        "custom_all_reduce_load",
        World(seed=102, communication="custom_all_reduce", attention_tp=2, faults=(load_context(2, 2.5),)),
    ),
    *_named(3, "eager_dependent_launch"),
    _rule(3, "dependent_launch_load", World(seed=103, dependent_launch=True, faults=(load_context(5, 2.5),))),
    *_named(4, "overlap_slow_gpu", "overlap_load", "overlap_healthy"),
    _rule(4, "streams_apart", World(seed=104, comm_stream=True, faults=(load_context(4, 2.5),))),
    *_named(5, "overlap_hook_load"),
    _rule(5, "first_halves_never_wait", World(seed=105, communication="deepep", receive_hook=True)),
    *_named(6, "normal_dispatch"),
    _rule(6, "waiting_for_counts", World(seed=106, communication="deepep_normal", graph=False)),
    _rule(7, "slow_where_tokens_stay", World(seed=107, communication="deepep", faults=(slow_gpu(3, 1.3),))),
    *_named(8, "memory_only_gpu", "slow_gpu"),
    _rule(
        8,
        "slow_beside_collectives",
        World(seed=108, two_batch_overlap=True, contention=0.3),
    ),
    _rule(9, "padding", World(seed=109, graph=False, max_padding=True, faults=(load_requests(2, 2.5),))),
    *_named(10, "receiver_queue", "slow_link"),
    _rule(10, "link_under_dispatch", World(seed=110, communication="deepep", faults=(slow_link(1, 30_000),))),
    _rule(10, "queue_in_normal_mode", replace(WORLDS["normal_dispatch"], faults=(receiver_queue(4, 40_000),))),
    *_named(11, "one_file_per_rank_clock"),
    _rule(
        11,
        "clocks_apart_link",
        World(
            seed=111, files="rank", ranks_per_node=4, host_clock_ns=3_000_000, drift_ppm=12.0,
            faults=(slow_link(3, 60_000),),
        ),
    ),
    *_named(12, "starts_apart", "cut_edges"),
    _rule(13, "prompts_between", World(seed=113, steps=60, prefill_every=6, faults=(slow_gpu(6, 1.25),))),
    _rule(
        14,
        "hosts_meet_unseen",
        World(
            seed=114, annotations="none", runtime_rows=False, faults=(host_late(3, 600_000, before_gather=True),)
        ),
        silent=True,
    ),
    *_named(15, "host_steady"),
    _rule(15, "no_calls", World(seed=115, runtime_rows=False, faults=(host_late(5, 450_000),))),
    _rule(16, "healthy_silicon", World(seed=116, steps=100, chip_spread=0.015, routing_spread=0.2)),
    _rule(16, "two_ranks_even", World(seed=117, ranks=2, steps=60, chip_spread=0.01)),
    _rule(20, "fabric_without_reference", World(seed=120, faults=(fabric(3.0),)), silent=True),
    *_named(20, "fabric_window"),
    _rule(
        21,
        "host_of_four",
        World(
            seed=121, files="node", ranks_per_node=4, host_clock_ns=1_000_000, drift_ppm=10.0,
            faults=(host_late((4, 5, 6, 7), 500_000),),
        ),
    ),
)  # fmt: skip
"""The worlds in the order of the rules."""
