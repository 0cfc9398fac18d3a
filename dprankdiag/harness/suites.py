"""Small worlds by name, each with one thing to find or nothing, and their recordings on disk.

The `overlap` worlds run two halves of a batch at a time, so that a collective hides behind the other half's work and
only what outlasts it is lost; replayed as graphs, streams wait for each other without a row that says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import FileClock
from dprankdiag.harness.faults import (
    fabric,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    load_requests,
    onset,
    periodic,
    receiver_queue,
    slow_gpu,
    slow_link,
    uniform,
    window,
)
from dprankdiag.harness.nsys_schema import Schema
from dprankdiag.harness.nsys_writer import write_export
from dprankdiag.harness.torch_files import Trouble, write_traces
from dprankdiag.harness.torch_names import FileNames
from dprankdiag.harness.torch_writer import TorchStyle
from dprankdiag.harness.world import Names
from dprankdiag.harness.worlds import World, simulate_world

Format = Literal["nsys", "torch"]

WORLDS: dict[str, World] = {
    "healthy": World(seed=1),
    "healthy_noisy": World(
        seed=2, noise=0.08, tail_share=0.003, chip_spread=0.02, load_spread=0.05, routing_spread=0.15, names="vllm"
    ),
    "slow_gpu": World(seed=3, faults=(slow_gpu(2, 1.25),)),
    "load_context": World(seed=4, faults=(load_context(3, 2.5),)),
    "load_requests": World(seed=5, graph=False, faults=(load_requests(6, 1.75),)),
    "load_onset": World(seed=6, steps=80, layers=5, faults=(load_context(1, 2.5, when=onset(40)),)),
    "host_burst": World(seed=7, steps=60, faults=(host_burst(5, stalls=5, stall_ns=4_000_000),)),
    "host_steady": World(seed=8, faults=(host_late(4, 450_000),)),
    "hot_expert": World(
        seed=9, faults=(hot_expert({0: 3, 1: 6, 2: 0, 3: 5, 4: 3, 5: 7, 6: 1, 7: 6}, 2.2),), names="vllm"
    ),
    "receiver_queue": World(seed=10, communication="deepep", faults=(receiver_queue(6, 35_000),)),
    "slow_link": World(seed=11, faults=(slow_link(2, 30_000),)),
    "fabric_window": World(seed=12, steps=80, layers=5, faults=(fabric(3.5, when=window(30, 55)),)),
    "uniform": World(seed=13, steps=80, layers=5, faults=(uniform(1.3, when=onset(40)),)),
    "attention_tp_load": World(seed=14, attention_tp=2, faults=(load_context(4, 2.2),)),
    "deepep_load": World(seed=15, communication="deepep", faults=(load_context(0, 2.5),)),
    "two_slow_gpus": World(seed=16, faults=(slow_gpu((1, 6), 1.3),)),
    "custom_all_reduce_gpu": World(
        seed=17, communication="custom_all_reduce", attention_tp=2, faults=(slow_gpu(5, 1.25),)
    ),
    "one_file_per_rank_clock": World(
        seed=18,
        files="rank",
        ranks_per_node=1,
        host_clock_ns=3_000_000,
        drift_ppm=12.0,
        faults=(load_context(7, 2.5),),
    ),
    "load_rotating": World(seed=19, faults=(load_context((1, 4, 6), 2.5, rotating=True),)),
    "host_periodic": World(seed=20, steps=80, layers=5, faults=(host_late(3, 2_500_000, when=periodic(8, 3)),)),
    "memory_only_gpu": World(seed=21, faults=(slow_gpu(1, 1.3, memory_only=True),), names="vllm"),
    "eager_dependent_launch": World(seed=22, graph=False, dependent_launch=True, faults=(slow_gpu(4, 1.25),)),
    "normal_dispatch": World(seed=23, communication="deepep_normal", graph=False, faults=(load_context(2, 2.5),)),
    "invented_names": World(seed=24, names="invented", faults=(slow_gpu(3, 1.3),)),
    "one_file_per_node": World(
        seed=26,
        ranks=16,
        steps=30,
        layers=5,
        files="node",
        ranks_per_node=8,
        host_clock_ns=3_000_000,
        drift_ppm=12.0,
        faults=(slow_gpu(11, 1.25),),
    ),
    "starts_apart": World(
        seed=27,
        steps=30,
        files="rank",
        ranks_per_node=4,
        host_clock_ns=3_000_000,
        start_spread=5,
        faults=(load_context(3, 2.5),),
    ),
    "cut_edges": World(seed=25, cut_edges=True, prefill_every=9, faults=(load_context(5, 2.5),)),
    "overlap_healthy": World(seed=31, two_batch_overlap=True),
    "overlap_eager_healthy": World(seed=31, two_batch_overlap=True, graph=False),
    "overlap_slow_gpu": World(seed=32, two_batch_overlap=True, faults=(slow_gpu(2, 1.25),)),
    "overlap_eager_slow_gpu": World(seed=32, two_batch_overlap=True, graph=False, faults=(slow_gpu(2, 1.25),)),
    "overlap_load": World(seed=33, two_batch_overlap=True, faults=(load_context(5, 2.5),)),
    "overlap_deepep_load": World(
        seed=34, two_batch_overlap=True, communication="deepep", graph=False, faults=(load_context(1, 2.5),)
    ),
    "overlap_hook_load": World(
        seed=35, two_batch_overlap=True, communication="deepep", receive_hook=True, faults=(load_context(6, 2.5),)
    ),
    "overlap_attention_tp_load": World(seed=36, two_batch_overlap=True, attention_tp=2, faults=(load_context(3, 2.5),)),
}

_NAMING: dict[Names, FileNames] = {"sglang": "sglang", "vllm": "vllm", "invented": "torch"}


def write_world(
    world: World,
    folder: Path,
    *,
    name: str = "world",
    format: Format = "nsys",
    schema: Schema = "3.25",
    compact: bool = False,
    style: TorchStyle | None = None,
    troubles: Sequence[Trouble] = (),
) -> list[Path]:
    """Simulate a world and write its recordings into a folder.

    Args:
        world: the world.
        folder: where to; made if it is not there.
        name: stem of the files; of torch traces, which an engine names, the prefix.
        format: exports of Nsight Systems as the world's `files` says, or a torch profiler trace a rank.
        schema: version of an export.
        compact: spend time to make exports small.
        style: what was asked of which torch profiler; None for the newest, and collectives as the engine launches them.
        troubles: what goes wrong with torch traces.

    Returns:
        The files; the same world gives the same bytes.

    Raises:
        ValueError: a torch trace cannot show what the world is to record.
    """
    folder.mkdir(parents=True, exist_ok=True)
    recording = simulate_world(world)
    if format == "torch":
        clocks = [clock for _, _, clock in plan_files(replace(world, files="rank"))]
        naming = _NAMING[world.names]
        style = style or TorchStyle(collective_args="none" if world.names == "vllm" else "eager")
        return write_traces(recording, clocks, folder, name=name, naming=naming, style=style, troubles=troubles)
    paths = []
    for label, ranks, clock in plan_files(world):
        path = folder / f"{name}{label}.sqlite"
        write_export(recording, path, ranks=ranks, clock=clock, schema=schema, compact=compact)
        paths.append(path)
    return paths


def plan_files(world: World) -> list[tuple[str, tuple[int, ...], FileClock]]:
    """Decide which ranks share a file, and how its clock errs: label, ranks, clock."""
    size = {"one": world.ranks, "node": world.node_size, "rank": 1}[world.files]
    nodes = -(-world.ranks // world.node_size)
    wall = open_stream(world.seed, "wall-clock").standard_normal(nodes) * world.host_clock_ns
    boot = open_stream(world.seed, "boot-clock").integers(10**13, 10**15, nodes)
    files = -(-world.ranks // size)
    rate = open_stream(world.seed, "rate").standard_normal(nodes) * world.drift_ppm
    begin = np.zeros(files, int) if files == 1 else -open_stream(world.seed, "begin").integers(0, 400_000_000, files)
    plan = []
    for position in range(files):
        ranks = tuple(range(position * size, min((position + 1) * size, world.ranks)))
        node = ranks[0] // world.node_size
        clock = FileClock(int(begin[position]), round(float(wall[node])), float(rate[node]), int(boot[node]))
        plan.append(("" if files == 1 else f"-{position}", ranks, clock))
    return plan
