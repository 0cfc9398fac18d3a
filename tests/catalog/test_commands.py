"""Commands and experiments: whose they are, which releases have them, and that each flag named was checked."""

import re

import pytest

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.commands import Command, can_try, choose_command, load_commands
from dprankdiag.catalog.experiments import list_experiments, load_controls
from dprankdiag.model.serving import UNKNOWN_SERVING, Serving

COMMANDS = load_commands()
CONTROLS = load_controls()
ALL = [*(item for row in COMMANDS.values() for item in row), *(c for row in CONTROLS.values() for c in row.commands)]

CHECKED = {
    "sglang": {
        "--numa-node", "--enable-dp-attention-local-control-broadcast", "--load-balance-method",
        "--load-snapshot-publish-interval", "--enable-prefill-delayer", "--chunked-prefill-size",
        "--disaggregation-mode", "--max-running-requests", "--mem-fraction-static", "--speculative-num-draft-tokens",
        "--enable-eplb", "--ep-num-redundant-experts", "--eplb-rebalance-num-iterations",
        "--expert-distribution-recorder-mode", "--moe-a2a-backend", "--deepep-mode", "--cuda-graph-max-bs",
        "--cuda-graph-max-bs-decode", "--ep-dispatch-algorithm",
    },
    "vllm": {
        "--prefill-schedule-interval", "--max-num-batched-tokens", "--kv-transfer-config", "--max-num-seqs",
        "--gpu-memory-utilization", "--enable-eplb", "--eplb-config", "--all2all-backend",
        "--cpunodebind", "--membind",
    },
}  # fmt: skip


@pytest.mark.parametrize("engine", ["sglang", "vllm"])
def test_commands_name_no_flag_that_was_not_checked(engine: str) -> None:
    lines = [command.line for command in ALL if command.engine == engine]
    assert {flag for line in lines for flag in re.findall(r"--[a-z][a-z0-9-]+", line)} == CHECKED[engine]


def test_every_command_belongs_to_a_remedy_and_has_a_source() -> None:
    keys = {remedy.key for cause in load_causes().values() for remedy in cause.remedies}
    assert set(COMMANDS) <= keys
    assert all(command.source and command.line for command in ALL)


def test_every_experiment_belongs_to_causes_and_tells_two_of_them_apart() -> None:
    causes = set(load_causes())
    for control in CONTROLS.values():
        told = {outcome.cause for outcome in control.outcomes}
        assert control.causes
        assert {*control.causes, *told} <= causes
        assert len(told) >= 2


@pytest.mark.parametrize(
    "release,line",
    [
        ("0.5.23", "--load-balance-method total_requests"),
        ("0.5.12.post1", "--load-balance-method total_requests"),
        ("0.5.3", "--load-balance-method shortest_queue"),
        ("0.4.9", None),
    ],
)
def test_a_release_is_told_the_spelling_it_has(release: str, line: str | None) -> None:
    assert choose_command(COMMANDS["balance-requests"], Serving("sglang", release)) == line


def test_an_engine_of_unknown_release_is_told_the_newest_spelling_and_from_when_it_holds() -> None:
    told = choose_command(COMMANDS["balance-requests"], Serving("sglang"))
    assert told == "--load-balance-method total_requests (0.5.8 or later)"


def test_an_unknown_engine_is_told_both_spellings_with_their_engines() -> None:
    told = choose_command(COMMANDS["route-explicitly"], UNKNOWN_SERVING)
    assert (
        told
        == 'SGLang (0.5.10 or later): "routed_dp_rank": RANK in the request; vLLM: header X-data-parallel-rank: RANK'
    )


def test_what_only_the_other_engine_has_cannot_be_tried() -> None:
    assert not can_try(COMMANDS["balance-tokens"], Serving("vllm"))
    assert choose_command(COMMANDS["balance-tokens"], Serving("vllm")) is None


def test_what_needs_no_command_can_always_be_tried() -> None:
    assert can_try((), Serving("vllm", "0.33.0"))


def test_a_spelling_is_gone_from_the_release_that_no_longer_has_it() -> None:
    command = Command("vllm", "X", "", since="0.11.2", until="0.12")
    fits = [command.fits(Serving("vllm", release)) for release in ("0.11.1", "0.11.2", "0.11.9", "0.12.0", "0.33.0")]
    assert fits == [False, True, True, False, False]


@pytest.mark.parametrize("engine,line", [("sglang", "--ep-dispatch-algorithm fake"), ("vllm", "uniform_random")])
def test_hot_experts_are_told_from_a_slow_gpu_by_an_even_dispatch(engine: str, line: str) -> None:
    serving = Serving("sglang", "0.5.23") if engine == "sglang" else Serving("vllm", "0.33.0")
    (told,) = [item for item in list_experiments("structural.expert", serving) if item.key == "even-dispatch"]
    assert told.command is not None
    assert line in told.command
    assert {outcome.cause for outcome in told.outcomes} == {"structural.expert", "single_point.gpu"}


def test_an_experiment_that_the_release_cannot_run_is_not_told() -> None:
    keys = [item.key for item in list_experiments("load.context", Serving("sglang", "0.5.9"))]
    assert "one-request-each" not in keys
