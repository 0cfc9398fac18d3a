"""Reports of numbers that engines told: uneven load that was missed, and even load that was taken for a sick rank."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.proof.command import analyze_here, run_here
from tests.proof.ledger_inputs import Rows, write_loads, write_sglang, write_vllm
from tests.proof.verdicts import list_warned

Warned = list[tuple[str, list[int]]]


def classes(warned: Warned) -> set[str]:
    """List the classes of what is warned of."""
    return {cause.split(".")[0] for cause, _ in warned}


def blamed(said: dict[str, Any]) -> set[int]:
    """Collect the ranks that any finding names, warned of or not."""
    return {rank for finding in said["findings"] for rank in finding["ranks"]}


def at(seconds: float, path: Path) -> str:
    """Name a file's moment."""
    return f"lab@{seconds:g}={path}"


def queues(folder: Path, name: str, running: Sequence[float], waiting: Sequence[float | None]) -> Path:
    rows: Rows = {"num_requests_running": running, "num_requests_waiting": waiting}
    return write_vllm(folder / name, rows)


class TestRequestsLeftWithOneEngine:
    """A01: DP4; running 8/8/8/8 became 27/5/0/0 within 401 s, and nothing ever waited on engine 0."""

    def test_the_engine_that_holds_most_is_named_although_it_has_no_queue(self, tmp_path: Path) -> None:
        first = queues(tmp_path, "t0.prom", [8, 8, 8, 8], [0, 0, 0, 0])
        last = queues(tmp_path, "t1.prom", [27, 5, 0, 0], [0, None, None, None])
        said = analyze_here(at(0, first), at(401, last))
        warned = list_warned(said)
        assert classes(warned) == {"load"}
        assert warned[0][1] == [0]

    def test_the_first_moment_alone_is_even(self, tmp_path: Path) -> None:
        first = queues(tmp_path, "t0.prom", [8, 8, 8, 8], [0, 0, 0, 0])
        assert analyze_here(first)["findings"] == []

    def test_the_same_moment_twice_is_even(self, tmp_path: Path) -> None:
        paths = [queues(tmp_path, f"{name}.prom", [8, 8, 8, 8], [0, 0, 0, 0]) for name in ("a", "b")]
        assert analyze_here(at(0, paths[0]), at(401, paths[1]))["findings"] == []


class TestSixAndFour:
    """A05: DP2; a tie-break that favours rank 0 shows 6 and 4 instead of 5 and 5."""

    def test_one_moment_of_it_is_noise(self, tmp_path: Path) -> None:
        assert list_warned(analyze_here(queues(tmp_path, "t0.prom", [6, 4], [0, 0]))) == []


class TestFewLongAgainstManyShort:
    """A10: rank 0 holds one request of 10,000 tokens, rank 1 two of 1,000."""

    def test_the_rank_with_more_requests_and_fewer_tokens_is_not_blamed(self, tmp_path: Path) -> None:
        loads = [
            {"num_running_reqs": 1, "num_used_tokens": 10_000, "num_total_tokens": 10_000},
            {"num_running_reqs": 2, "num_used_tokens": 2_000, "num_total_tokens": 2_000},
        ]
        paths = [write_loads(tmp_path / f"{second}.json", loads, second) for second in (10, 20)]
        assert 1 not in blamed(analyze_here(*paths))


class TestColdStart:
    """A16: gauges stay at 0 for the first 18 s after a start while requests are already computed."""

    def test_zeros_everywhere_are_no_idle_ranks(self, tmp_path: Path) -> None:
        said = analyze_here(queues(tmp_path, "t0.prom", [0] * 8, [0] * 8))
        assert said["findings"] == []
        assert said["status"] == "inconclusive"


class TestStickySessions:
    """A25: DP4; running 0/0/1/0, queued 0/0/11/0: sessions stick to one rank."""

    ROWS: ClassVar[Rows] = {"num_running_reqs": [0, 0, 1, 0], "num_queue_reqs": [0, 0, 11, 0]}

    def check(self, said: dict[str, Any]) -> None:
        warned = list_warned(said)
        assert classes(warned) == {"load"}
        assert [ranks for _, ranks in warned] == [[2]]
        assert "stuck" not in json.dumps(said["findings"])

    def test_the_page_names_the_rank_with_the_queue(self, tmp_path: Path) -> None:
        self.check(analyze_here(write_sglang(tmp_path / "page.prom", self.ROWS)))

    def test_the_load_answer_names_it_too(self, tmp_path: Path) -> None:
        columns = zip(self.ROWS["num_running_reqs"], self.ROWS["num_queue_reqs"], strict=True)
        loads = [{"num_running_reqs": running, "num_waiting_reqs": waiting} for running, waiting in columns]
        self.check(analyze_here(write_loads(tmp_path / "loads.json", loads, 10)))

    def test_as_many_requests_on_each_rank_are_even(self, tmp_path: Path) -> None:
        rows: Rows = {"num_running_reqs": [1, 1, 1, 1], "num_queue_reqs": [2, 2, 3, 2]}
        assert analyze_here(write_sglang(tmp_path / "page.prom", rows))["findings"] == []

    @pytest.mark.parametrize("labels", ['engine_type="unified",model_name="m"', 'model_name="m"'])
    def test_without_rank_labels_it_says_that_ranks_cannot_be_told_apart(self, tmp_path: Path, labels: str) -> None:
        """D02: the scrape dropped the rank, so that four samples a moment mix in one series."""
        path = write_sglang(tmp_path / "page.prom", self.ROWS, labels=labels, ranked=False)
        said = analyze_here(path)
        assert (said["status"], said["findings"]) == ("inconclusive", [])
        assert "cannot be told apart" in said["headline"]

    def test_schedulers_without_a_dp_rank_are_no_ranks(self, tmp_path: Path) -> None:
        path = write_sglang(tmp_path / "page.prom", self.ROWS)
        path.write_text(re.sub('dp_rank="[0-9]",', "", path.read_text("utf-8")), "utf-8")
        said = analyze_here(path)
        assert (said["status"], said["findings"]) == ("inconclusive", [])
        assert "cannot be told apart" in said["headline"]


class TestEqualRequestsUnequalTokens:
    """A27: DP4, prefill engine; 14.18, 5.66, 6.37 and 8.07 million prompt tokens computed, as many requests on each."""

    MILLIONS = (14.18, 5.66, 6.37, 8.07)

    def judge(self, folder: Path, millions: Sequence[float]) -> dict[str, Any]:
        labels = 'engine_type="prefill",model_name="m",pp_rank="0"'
        name = 'realtime_tokens_total{mode="prefill_compute"}'
        running: Rows = {"num_running_reqs": [4, 4, 4, 4]}
        begin = write_sglang(folder / "t0.prom", {**running, name: [0, 0, 0, 0]}, labels=labels)
        end = write_sglang(folder / "t1.prom", {**running, name: [1e6 * it for it in millions]}, labels=labels)
        return analyze_here(begin, end)

    def test_the_rank_with_most_prompt_tokens_is_named_alone(self, tmp_path: Path) -> None:
        assert list_warned(self.judge(tmp_path, self.MILLIONS)) == [("load.prefill", [0])]

    def test_equal_tokens_are_even(self, tmp_path: Path) -> None:
        assert self.judge(tmp_path, (8.57, 8.57, 8.57, 8.57))["findings"] == []


class TestFullPool:
    """A31: decode engine, DP8: one rank's pool is full, some of it allocated ahead, and all ranks freeze."""

    def judge(self, folder: Path, usage: Sequence[float], ahead: int) -> dict[str, Any]:
        paths = []
        for poll, mine in enumerate(usage):
            loads = []
            for rank in range(8):
                share = mine if rank == 5 else 0.4
                queue = ahead if rank == 5 else 0
                used = round(share * 100_000)
                loads.append(
                    {
                        "num_running_reqs": 1 if rank == 5 else 6,
                        "num_waiting_reqs": queue,
                        "num_used_tokens": used,
                        "num_total_tokens": used,
                        "max_total_num_tokens": 100_000,
                        "token_usage": share,
                        "gen_throughput": 0.0 if poll >= 3 else 40.0,
                        "disaggregation": {"mode": "decode", "decode_prealloc_queue_reqs": queue},
                    }
                )
            paths.append(write_loads(folder / f"{poll}.json", loads, 10 * poll + 10))
        return analyze_here(*paths)

    def test_the_full_rank_is_named_and_not_the_frozen_ones(self, tmp_path: Path) -> None:
        warned = list_warned(self.judge(tmp_path, (0.9, 0.95, 0.99, 1.0, 1.0, 1.0), 2))
        assert classes(warned) == {"load"}
        assert [ranks for _, ranks in warned] == [[5]]

    def test_pools_alike_name_nobody(self, tmp_path: Path) -> None:
        assert list_warned(self.judge(tmp_path, (0.4,) * 6, 0)) == []


class TestFrozenGauge:
    """A35: a rank turned idle and showed 24 running requests for another 30 s."""

    def judge(self, folder: Path, tokens: Sequence[float], fourth: float = 24) -> dict[str, Any]:
        paths = []
        for moment, factor in ((0, 1.0), (15, 2.0)):
            grown = [5000 * factor if moves else 5000.0 for moves in tokens]
            rows: Rows = {
                "num_running_reqs": [24, 24, 24, fourth],
                "gen_throughput": [700, 700, 700, 700],
                'realtime_tokens_total{mode="decode"}': grown,
            }
            paths.append(at(moment, write_sglang(folder / f"t{moment}.prom", rows)))
        return analyze_here(*paths)

    def test_a_gauge_that_stopped_is_no_stuck_rank(self, tmp_path: Path) -> None:
        said = self.judge(tmp_path, [1, 1, 1, 0])
        assert 3 not in blamed(said)
        assert classes(list_warned(said)) <= {"load"}
        assert any("idle, not stuck" in note for note in said["notes"])

    def test_an_engine_that_rests_as_a_whole_names_nobody(self, tmp_path: Path) -> None:
        assert self.judge(tmp_path, [0, 0, 0, 0])["findings"] == []

    def test_a_gauge_with_a_counter_that_moves_is_taken_as_it_is(self, tmp_path: Path) -> None:
        said = self.judge(tmp_path, [1, 1, 1, 1])
        assert said["findings"] == []
        assert not any("idle, not stuck" in note for note in said["notes"])


class TestStepTimeThroughIdleTime:
    """A37: a step time taken from the gap between two reports reads 7,000 ms after 280 s without work."""

    def log(self, folder: Path, quiet: Sequence[int]) -> Path:
        lines = []
        for second in range(0, 320):
            for rank in range(4):
                if rank in quiet and 20 <= second < 300:
                    continue
                shown = 40 / 280 if rank in quiet and second == 300 else 40.0
                minute, rest = divmod(second, 60)
                lines.append(
                    f"[2026-07-01 00:{minute:02d}:{rest:02d} DP{rank} TP{rank} EP{rank}] Decode batch, "
                    "#running-req: 1, #token: 3000, token usage: 0.01, cuda graph: True, "
                    f"gen throughput (token/s): {shown:.2f}, #queue-req: 0"
                )
        path = folder / "server.log"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return path

    def test_nobody_is_called_slow_after_an_idle_stretch_of_its_own(self, tmp_path: Path) -> None:
        said = analyze_here(self.log(tmp_path, quiet=(3,)))
        assert 3 not in blamed(said)
        assert "single_point" not in classes([(item["cause"], item["ranks"]) for item in said["findings"]])

    def test_an_idle_stretch_of_all_ranks_is_no_finding(self, tmp_path: Path) -> None:
        assert analyze_here(self.log(tmp_path, quiet=(0, 1, 2, 3)))["findings"] == []

    def test_no_idle_stretch_is_no_finding(self, tmp_path: Path) -> None:
        assert analyze_here(self.log(tmp_path, quiet=()))["findings"] == []


class TestOneSlotOfAPipeline:
    """A39: with four pipeline stages a load answer shows 1, 3 or 6 of the 16 requests that run."""

    def judge(self, folder: Path, polls: Sequence[Sequence[int]]) -> dict[str, Any]:
        paths = [
            write_loads(folder / f"{number}.json", [{"num_running_reqs": count} for count in poll], 10 * number + 10)
            for number, poll in enumerate(polls)
        ]
        return analyze_here(*paths)

    def test_one_rank_has_nobody_to_be_compared_with(self, tmp_path: Path) -> None:
        said = self.judge(tmp_path, [[1], [3], [6]])
        assert (said["status"], said["findings"]) == ("inconclusive", [])
        assert "one rank" in said["headline"]

    def test_the_whole_number_is_no_finding_either(self, tmp_path: Path) -> None:
        assert self.judge(tmp_path, [[16], [16], [16]])["findings"] == []

    @pytest.mark.parametrize("seed", range(12))
    def test_slots_that_happen_to_differ_are_no_uneven_load(self, tmp_path: Path, seed: int) -> None:
        drawn = random.Random(seed)
        polls = [[drawn.choice((1, 3, 6)) for _ in range(4)] for _ in range(3)]
        assert list_warned(self.judge(tmp_path, polls)) == []


class TestLastRankToReport:
    """A43: rates of 386.27 and 386.21 tokens a second on two ranks."""

    def test_they_are_even(self, tmp_path: Path) -> None:
        rows: Rows = {"gen_throughput": [386.20832953491475, 386.2656119271815], "num_running_reqs": [4, 4]}
        said = analyze_here(write_sglang(tmp_path / "page.prom", rows))
        assert (said["status"], said["findings"]) == ("inconclusive", [])


class TestDraftsRefusedEverywhere:
    """A45: with attention in four DP ranks drafts give 1.49 and 1.48 tokens a step instead of 2.35, on all ranks."""

    def judge(self, folder: Path, lengths: Sequence[float]) -> dict[str, Any]:
        paths = []
        for moment, steps in ((0, 1000), (15, 1500)):
            rows: Rows = {
                "spec_accept_length": lengths,
                "num_running_reqs": [16, 16, 16, 16],
                'dp_attention_steps_total{rank_state="active"}': [steps] * 4,
                'dp_attention_steps_total{rank_state="idle"}': [0] * 4,
                'realtime_tokens_total{mode="decode"}': [steps * 16 * length for length in lengths],
            }
            paths.append(at(moment, write_sglang(folder / f"t{moment}.prom", rows)))
        return analyze_here(*paths)

    def test_it_is_no_ranks_fault(self, tmp_path: Path) -> None:
        assert self.judge(tmp_path, (1.4931, 1.4819, 1.4931, 1.4819))["findings"] == []

    def test_on_one_rank_alone_it_is(self, tmp_path: Path) -> None:
        said = self.judge(tmp_path, (2.3541, 1.4819, 2.3541, 2.3541))
        assert [(item["cause"], item["ranks"]) for item in said["findings"]] == [("load.speculation", [1])]


class TestPrefillsInTurn:
    """A49: DP8; totals are even, in each step another rank prefills and the others wait: mean over maximum is 54 %."""

    def test_even_totals_blame_no_rank(self, tmp_path: Path) -> None:
        paths = []
        for moment, steps in ((0, 80), (10, 240)):
            own, most = 100 * steps + 700 * steps / 8, 800.0 * steps
            rows: Rows = {
                'dp_attention_tokens_total{kind="scheduled"}': [own] * 8,
                'dp_attention_tokens_total{kind="imbalance"}': [most - own] * 8,
                'dp_attention_steps_total{rank_state="active"}': [steps] * 8,
                'dp_attention_steps_total{rank_state="idle"}': [0] * 8,
                "num_running_reqs": [100] * 8,
            }
            paths.append(at(moment, write_sglang(tmp_path / f"t{moment}.prom", rows)))
        assert blamed(analyze_here(*paths)) in (set(), set(range(8)))


class TestCachesThrashedEverywhere:
    """A55: balancing by tokens keeps load even and finds little in any cache: 1.36 requests a second, not 7.88."""

    def judge(self, folder: Path, found: Sequence[float]) -> dict[str, Any]:
        paths = []
        for moment, factor in ((0, 1), (15, 2)):
            rows: Rows = {
                'realtime_tokens_total{mode="prefill_compute"}': [factor * (1e6 - 1e6 * share) for share in found],
                'realtime_tokens_total{mode="prefill_cache"}': [factor * 1e6 * share for share in found],
                "num_running_reqs": [8, 8, 8, 8],
            }
            paths.append(at(moment, write_sglang(folder / f"t{moment}.prom", rows)))
        return analyze_here(*paths)

    def test_few_hits_everywhere_are_no_ranks_fault(self, tmp_path: Path) -> None:
        assert self.judge(tmp_path, (0.05, 0.06, 0.05, 0.06))["findings"] == []

    def test_few_hits_on_one_rank_are(self, tmp_path: Path) -> None:
        assert list_warned(self.judge(tmp_path, (0.8, 0.8, 0.1, 0.8))) == [("load.cache", [2])]


class TestQueueOfOneForAll:
    """A69: the queue is global and told on rank 0 only."""

    def test_a_number_that_others_lack_is_not_compared_with_nothing(self, tmp_path: Path) -> None:
        rows: Rows = {"num_running_reqs": [8, 8, 8, 8], "num_queue_reqs": [12, None, None, None]}
        assert list_warned(analyze_here(write_sglang(tmp_path / "page.prom", rows))) == []


class TestPrefillLinesOfTwoRanks:
    """A82: in the same second rank 13 begins a prefill of 12,295 new tokens, rank 14 one of 4."""

    def judge(self, folder: Path, thirteen: int, fourteen: int) -> dict[str, Any]:
        lines = [
            f"[2025-05-08 17:42:31 DP{rank} TP{rank}] Prefill batch. #new-seq: 1, #new-token: {tokens}, "
            "#cached-token: 0, token usage: 0.12, gap_latency: 1.4, #running-req: 0, #queue-req: 0"
            for rank, tokens in ((13, thirteen), (14, fourteen))
        ]
        path = folder / "server.log"
        path.write_text("\n".join(lines) + "\n", "utf-8")
        return analyze_here(path)

    def test_only_the_rank_with_the_long_prompts_may_be_named(self, tmp_path: Path) -> None:
        said = self.judge(tmp_path, 12_295, 4)
        assert blamed(said) <= {13}
        assert {item["cause"].split(".")[0] for item in said["findings"]} <= {"load"}

    def test_prompts_alike_name_nobody(self, tmp_path: Path) -> None:
        assert self.judge(tmp_path, 6_000, 6_100)["findings"] == []


def busy_page(folder: Path, name: str, grown: float, running: Sequence[float] = (8,) * 8) -> Path:
    """Write a page of eight busy ranks whose counters stand at a multiple of a thousand."""
    rows: Rows = {
        "num_running_reqs": running,
        "num_queue_reqs": [0] * len(running),
        'realtime_tokens_total{mode="decode"}': [1000 * grown * max(count, 1) for count in running],
    }
    return write_sglang(folder / name, rows)


class TestPageThatLostItsRanks:
    """D14: a slow endpoint answers 139,225 bytes and 3,859 bytes in turn: whole pages and what little was ready."""

    OWN = "# TYPE process_cpu_seconds_total counter\nprocess_cpu_seconds_total 5.0\n"

    def cut(self, folder: Path) -> Path:
        path = folder / "cut.prom"
        path.write_text(self.OWN, "utf-8")
        return path

    def test_the_whole_pages_are_judged_and_nobody_is_gone(self, tmp_path: Path) -> None:
        first, last = (busy_page(tmp_path, f"{grown}.prom", grown) for grown in (1, 2))
        said = analyze_here(at(0, first), at(5.37, self.cut(tmp_path)), at(17.55, last))
        assert said["findings"] == []
        assert [rank["rank"] for rank in said["ranks"]] == list(range(8))
        assert [item["status"] for item in said["inputs"]].count("used") == 2

    def test_a_whole_page_and_a_cut_one_blame_nobody(self, tmp_path: Path) -> None:
        said = analyze_here(at(0, busy_page(tmp_path, "a.prom", 1)), at(5.37, self.cut(tmp_path)))
        assert said["findings"] == []
        assert said["status"] == "inconclusive"

    def test_a_cut_page_alone_is_refused(self, tmp_path: Path) -> None:
        assert run_here("analyze", self.cut(tmp_path)).is_refusal


class TestTwoValuesOfOneSeries:
    """D06: a page shows a series twice, with different values."""

    def test_neither_is_believed(self, tmp_path: Path) -> None:
        path = write_sglang(tmp_path / "page.prom", {"num_running_reqs": [8, 8, 8, 8]})
        page = path.read_text("utf-8")
        line = next(line for line in page.splitlines() if 'dp_rank="1"' in line)
        path.write_text(page + line.replace(" 8.0", " 80.0") + "\n", "utf-8")
        said = analyze_here(path)
        assert list_warned(said) == []
        assert any(word in json.dumps(said) for word in ("twice", "duplicate", "more than once", "several values"))


class TestAnotherWorkerEachTime:
    """D08: each scrape reaches another process, so that counters go up and down."""

    def test_no_rate_is_made_of_it(self, tmp_path: Path) -> None:
        pages = [
            at(5 * number, busy_page(tmp_path, f"{number}.prom", grown))
            for number, grown in enumerate((50, 3, 52, 4, 54))
        ]
        said = analyze_here(*pages)
        assert said["findings"] == []
        assert said["status"] == "inconclusive"
        assert "up and down" in said["headline"]


class TestHitRateSetToZero:
    """D16: the report of a decode batch sets the gauge of cache hits to 0."""

    def test_the_counters_are_believed(self, tmp_path: Path) -> None:
        paths = []
        for moment, factor in ((0, 1), (15, 2)):
            rows: Rows = {
                "cache_hit_rate": [0.6, 0.6, 0.0, 0.6],
                'realtime_tokens_total{mode="prefill_compute"}': [factor * 400_000] * 4,
                'realtime_tokens_total{mode="prefill_cache"}': [factor * 600_000] * 4,
                "num_running_reqs": [8, 8, 8, 8],
            }
            paths.append(at(moment, write_sglang(tmp_path / f"t{moment}.prom", rows)))
        assert analyze_here(*paths)["findings"] == []


class TestScrapedTwice:
    """D18: two jobs scrape the same server, and every count is doubled."""

    def test_a_page_given_twice_counts_once(self, tmp_path: Path) -> None:
        running = (8, 8, 8, 40, 8, 8, 8, 8)
        once = [at(moment, busy_page(tmp_path, f"{moment}.prom", 1 + moment, running)) for moment in (0, 15)]
        again = [at(moment, busy_page(tmp_path, f"again-{moment}.prom", 1 + moment, running)) for moment in (0, 15)]
        single, double = analyze_here(*once), analyze_here(*once, *again)
        assert list_warned(single) == [("load.requests", [3])]
        values = [[item["value"] for item in said["findings"][0]["evidence"]] for said in (single, double)]
        assert values[0] == values[1]


class TestRankTimesStage:
    """D20: gauges carry the rank; histograms carry rank × stages, so that two ranks look like eight."""

    def test_the_gauges_tell_how_many_ranks_there_are(self, tmp_path: Path) -> None:
        path = write_sglang(tmp_path / "page.prom", {"num_running_reqs": [8, 8]})
        lines = ["# TYPE sglang:queue_time_seconds histogram"]
        for index in range(8):
            labels = f'dp_rank="{index}",engine_type="unified",model_name="m",pp_rank="{index % 4}",tp_rank="0"'
            lines += [
                f"sglang:queue_time_seconds_sum{{{labels}}} 0.5",
                f'sglang:queue_time_seconds_bucket{{{labels},le="+Inf"}} 5.0',
                f"sglang:queue_time_seconds_count{{{labels}}} 5.0",
            ]
        path.write_text(path.read_text("utf-8") + "\n".join(lines) + "\n", "utf-8")
        said = analyze_here(path)
        assert said["findings"] == []
        assert not any("should be there" in note for note in said["notes"])
