"""What real engines told, with known truth: the right class and rank, or the abstention that the numbers deserve."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.proof.command import analyze_here, run_here
from tests.proof.ledger_inputs import multiply, relabel

BUSY = ("load.idle", "load.requests")
SLOW = ("single_point.unknown", "single_point.gpu", "single_point.host")


@dataclass(frozen=True, slots=True)
class Expected:
    """What a diagnosis of a folder must say.

    Attributes:
        causes: any of them is right; empty if nothing may be found.
        ranks: exactly these.
        grave: it is a warning at least, so that the command's status is "findings".
        says: words that must be shown, in any letter case.
    """

    causes: tuple[str, ...] = ()
    ranks: tuple[int, ...] = ()
    grave: bool = True
    says: tuple[str, ...] = ()


EVEN = Expected(says=("load even", "speed not visible"))
HOT_3 = Expected(("load.requests",), (3,))
BUSY_2 = Expected(BUSY, (2,))

SCENARIOS: dict[str, Expected] = {
    "sglang-0.5.9/count-skew": HOT_3,
    "sglang-0.5.9/one-busy-seven-idle": BUSY_2,
    "sglang-0.5.12/count-skew": HOT_3,
    "sglang-0.5.12/one-busy-seven-idle": BUSY_2,
    "sglang-0.5.18/count-skew": HOT_3,
    "sglang-0.5.18/one-busy-seven-idle": BUSY_2,
    "sglang-0.5.23/balanced": EVEN,
    "sglang-0.5.23/count-skew": HOT_3,
    "sglang-0.5.23/length-skew": Expected(("load.context",), (5,)),
    "sglang-0.5.23/single-slow-rank": Expected(("single_point.host",), (6,)),
    "sglang-0.5.23/one-busy-seven-idle": BUSY_2,
    "sglang-0.5.23/health-check-only": Expected(says=("zero",)),
    "sglang-0.5.23/flags-off": Expected(("load.requests",), (3,), says=("not enabled", "not the same as balanced")),
    "sglang-0.5.23/prefill-on-one-rank": Expected(("load.prefill",), (1,)),
    "sglang-0.5.23/spec-decode": Expected(("load.speculation",), (4,), grave=False),
    "sglang-0.5.23/tp16-dp8-default": HOT_3,
    "sglang-0.5.23/missing-rank": Expected(says=("rank 5",)),
    "sglang-0.5.23/one-rank-stale-snapshot": Expected(("ledger.stale",), (4,)),
    "sglang-0.5.23/measured-gloo-balanced": Expected(),
    "sglang-0.5.23/measured-gloo-slow-rank": Expected(("single_point.host",), (6,), grave=False),
    "sglang-0.5.23/measured-gloo-ctrl-slow-rank6": Expected(says=("ranks 2, 6", "broadcast")),
    "sglang-0.5.23/expert-skew": Expected(("structural.expert",), (5,), grave=False),
    "vllm-0.33.0/balanced": EVEN,
    "vllm-0.33.0/balanced-api8": EVEN,
    "vllm-0.33.0/moe-slow-gpu": EVEN,
    "vllm-0.33.0/hot-rank": HOT_3,
    "vllm-0.33.0/hot-rank-external-lb": HOT_3,
    "vllm-0.33.0/kv-skew": Expected(("load.context",), (5,)),
    "vllm-0.33.0/half-idle": Expected(BUSY, (0, 1, 2, 3)),
    "vllm-0.33.0/dense-slow-gpu": Expected(SLOW, (6,)),
}


def named(said: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    """List causes and ranks of all findings, the gravest first."""
    return [(item["cause"], tuple(item["ranks"])) for item in said["findings"]]


@pytest.mark.parametrize("scenario", SCENARIOS)
def test_each_recorded_scenario_gets_its_class_and_rank_or_no_finding(fixtures: Path, scenario: str) -> None:
    expected, said = SCENARIOS[scenario], analyze_here(fixtures / scenario)
    if not expected.causes:
        assert named(said) == []
        assert said["status"] == "inconclusive"
    else:
        assert {cause for cause, _ in named(said)} <= set(expected.causes)
        assert {ranks for _, ranks in named(said)} == {expected.ranks}
        assert (said["status"] == "findings") == expected.grave
    shown = json.dumps(said).lower()
    assert all(words in shown for words in expected.says)


def test_an_even_load_and_a_slow_gpu_in_lockstep_read_the_same(fixtures: Path) -> None:
    balanced, slow = (analyze_here(fixtures / "vllm-0.33.0" / name) for name in ("balanced", "moe-slow-gpu"))
    assert (balanced["status"], balanced["headline"]) == (slow["status"], slow["headline"])
    reasons = [[(item["cause"], item["reason"]) for item in said["abstentions"]] for said in (balanced, slow)]
    assert reasons[0] == reasons[1]


def test_a_slow_engine_on_its_own_costs_the_others_nothing(fixtures: Path) -> None:
    (finding,) = analyze_here(fixtures / "vllm-0.33.0" / "dense-slow-gpu")["findings"]
    assert finding["lost_ns"] is None
    assert finding["lost_ratio"] is None


def test_eight_ports_say_what_one_says(fixtures: Path) -> None:
    folder = fixtures / "vllm-0.33.0"
    joined, whole = (analyze_here(folder / name) for name in ("hot-rank-external-lb", "hot-rank"))
    assert named(joined) == named(whole)
    assert [rank["rank"] for rank in joined["ranks"]] == list(range(8))


def test_copies_of_attention_tensor_parallel_ranks_are_not_summed(fixtures: Path) -> None:
    (finding,) = analyze_here(fixtures / "sglang-0.5.23" / "tp16-dp8-default")["findings"]
    (held,) = [item for item in finding["evidence"] if item["name"] == "requests_held"]
    truth = json.loads((fixtures / "sglang-0.5.23/tp16-dp8-default/v1_loads_t1.json").read_text("utf-8"))
    load = truth["loads"][3]
    assert held["value"] == pytest.approx(load["num_running_reqs"] + load["num_waiting_reqs"], rel=0.01)


def test_the_wait_for_the_control_broadcast_separates_the_late_rank_from_the_one_behind_it(
    fixtures: Path, tmp_path: Path
) -> None:
    folder = fixtures / "sglang-0.5.23" / "measured-gloo-ctrl-slow-rank6"
    measured = json.loads((folder / "ground_truth.json").read_text("utf-8"))["measured"]
    for moment in ("t0", "t1"):
        lines = [
            f'sglang:scheduler_stage_seconds_total{{category="{stage}",dp_rank="{rank}",engine_type="unified",'
            f'forward_overlap="none",model_name="deepseek-ai/DeepSeek-V3.2",moe_ep_rank="{rank}",pp_rank="0",'
            f'tp_rank="{rank}"}} {one[moment][wait]}'
            for rank, one in measured.items()
            for stage, wait in (("recv_requests", "ctrl_wait"), ("get_next_batch_to_run", "wait"))
        ]
        page = (folder / f"metrics_{moment}.prom").read_text("utf-8")
        kept = [line for line in page.splitlines() if "scheduler_stage_seconds_total" not in line]
        told = "\n".join([*kept, "# TYPE sglang:scheduler_stage_seconds_total counter", *lines, ""])
        (tmp_path / f"metrics_{moment}.prom").write_text(told, "utf-8")
    assert named(analyze_here(tmp_path)) == [("single_point.host", (6,))]


def test_without_the_answer_of_a_rank_the_slow_one_is_not_named_as_such(fixtures: Path, tmp_path: Path) -> None:
    """A lockstep group with an unseen member names nobody as culprit."""
    folder = fixtures / "sglang-0.5.23" / "single-slow-rank"
    paths = []
    for moment in ("t0", "t1"):
        page = (folder / f"metrics_{moment}.prom").read_text("utf-8")
        paths.append(tmp_path / f"metrics_{moment}.prom")
        paths[-1].write_text("".join(line for line in page.splitlines(True) if 'dp_rank="2"' not in line), "utf-8")
    said = analyze_here(*paths, "--expect-ranks", "8")
    assert [cause for cause, _ in named(said) if cause.startswith("single_point")] == []
    assert "rank 2" in json.dumps(said)


TURNED = {0: 5, 1: 0, 2: 7, 3: 1, 4: 2, 5: 6, 6: 4, 7: 3}
FOR_PROPERTIES = (
    "sglang-0.5.23/balanced",
    "sglang-0.5.23/count-skew",
    "sglang-0.5.23/length-skew",
    "sglang-0.5.23/single-slow-rank",
    "sglang-0.5.23/prefill-on-one-rank",
    "sglang-0.5.23/one-busy-seven-idle",
    "sglang-0.5.12/count-skew",
    "vllm-0.33.0/hot-rank",
    "vllm-0.33.0/kv-skew",
    "vllm-0.33.0/balanced",
)

Change = Callable[[str], str]


def rewrite(folder: Path, target: Path, change: Change, *, answers: bool = True) -> list[Path]:
    """Write changed copies of a scenario's pages, and of its load answers if asked for."""
    target.mkdir()
    names = ["metrics_t0.prom", "metrics_t1.prom", "scrape1.prom", "scrape2.prom"]
    names += ["v1_loads_t0.json", "v1_loads_t1.json"] if answers else []
    copies = []
    for name in names:
        if (folder / name).exists():
            copies.append(target / name)
            copies[-1].write_text(change((folder / name).read_text("utf-8")), "utf-8")
    return copies


def same(text: str) -> str:
    """Change nothing."""
    return text


@pytest.mark.parametrize("scenario", FOR_PROPERTIES)
def test_other_numbers_for_the_ranks_name_the_same_ones(fixtures: Path, tmp_path: Path, scenario: str) -> None:
    plain = analyze_here(*rewrite(fixtures / scenario, tmp_path / "plain", same))
    turned = analyze_here(*rewrite(fixtures / scenario, tmp_path / "turned", lambda text: relabel(text, TURNED)))
    assert [(cause, tuple(sorted(TURNED[rank] for rank in ranks))) for cause, ranks in named(plain)] == named(turned)


@pytest.mark.parametrize("scenario", FOR_PROPERTIES)
def test_the_order_of_the_files_does_not_matter(fixtures: Path, tmp_path: Path, scenario: str) -> None:
    paths = rewrite(fixtures / scenario, tmp_path / "plain", same)
    shuffled = random.Random(scenario).sample(paths, len(paths))
    one, other = (analyze_here(*some) for some in (paths, shuffled))
    assert one["findings"] == other["findings"]
    assert (one["status"], one["headline"]) == (other["status"], other["headline"])


@pytest.mark.parametrize("scenario", FOR_PROPERTIES)
def test_a_store_that_dislikes_colons_changes_nothing(fixtures: Path, tmp_path: Path, scenario: str) -> None:
    def fold(text: str) -> str:
        return text.replace("sglang:", "sglang_").replace("vllm:", "vllm_")

    colon, underscore = (
        analyze_here(*rewrite(fixtures / scenario, tmp_path / name, change))
        for name, change in (("colon", same), ("underscore", fold))
    )
    assert named(colon) == named(underscore)
    assert colon["status"] == underscore["status"]


@pytest.mark.parametrize("scenario", ["balanced", "count-skew", "length-skew"])
@pytest.mark.parametrize("factor", [2.0, 5.0])
def test_twice_the_load_everywhere_is_as_uneven(fixtures: Path, tmp_path: Path, scenario: str, factor: float) -> None:
    scaled = (
        "sglang:num_running_reqs",
        "sglang:num_queue_reqs",
        "sglang:decode_sum_seq_lens",
        "sglang:num_used_tokens",
        "sglang:max_total_num_tokens",
        "sglang:dp_attention_tokens_total",
        "sglang:dp_attention_pairs_total",
        "sglang:realtime_tokens_total",
    )
    folder = fixtures / "sglang-0.5.23" / scenario
    once = analyze_here(*rewrite(folder, tmp_path / "once", same, answers=False))
    more = rewrite(folder, tmp_path / "more", lambda text: multiply(text, factor, *scaled), answers=False)
    assert named(analyze_here(*more)) == named(once)


def test_a_folder_without_ledgers_is_refused(tmp_path: Path) -> None:
    (tmp_path / "note.txt").write_text("nothing here\n", "utf-8")
    assert run_here("analyze", tmp_path).is_refusal
