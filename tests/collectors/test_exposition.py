"""What a page may look like, and what must not come of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer

LABELS = 'dp_rank="0",engine_type="unified",model_name="m",pp_rank="0",tp_rank="0"'
OTHER = LABELS.replace('dp_rank="0"', 'dp_rank="1"').replace('tp_rank="0"', 'tp_rank="1"')
END = "sglang:end_of_page 0\n"


def parse(page: str) -> LedgerAnswer:
    (answer,) = SglangMetrics().parse(page.encode(), "x")
    return answer


def running(page: str) -> list[float]:
    return list(parse(page).values["running_requests"])


def test_values_are_read() -> None:
    assert running(f"sglang:num_running_reqs{{{LABELS}}} 3.0\n") == [3.0]


@pytest.mark.parametrize(
    "line",
    [
        f"sglang:num_running_reqs{{{LABELS}}} 3.0 1764000000000",
        f'sglang:num_running_reqs{{{LABELS}}} 3.0 # {{trace_id="a}} 9"}} 7.0 1764000000.5',
        f'sglang:num_running_reqs{{{LABELS}}} 3.0 1764000000 # {{trace_id="b"}} 7.0',
        f"sglang:num_running_reqs{{{LABELS}}}   3.0",
        f"sglang:num_running_reqs{{{LABELS}}}\t3.0",
        f"sglang:num_running_reqs{{ {LABELS}, }} 3.0",
        f"sglang:num_running_reqs {{{LABELS}}} 3.0".replace("reqs {", "reqs{"),
        f'{{"sglang:num_running_reqs",{LABELS}}} 3.0',
        f'{{"sglang:num_running_reqs", {LABELS}}} 3.0',
        f"sglang_num_running_reqs{{{LABELS}}} 3.0",
        f"sglang:num_running_reqs{{{LABELS}}} 3e0",
    ],
)
def test_spellings_of_a_sample_are_understood(line: str) -> None:
    assert running(f"{line}\n") == [3.0]


def test_windows_line_ends_are_line_ends() -> None:
    assert running(f"# HELP sglang:num_running_reqs x\r\nsglang:num_running_reqs{{{LABELS}}} 3.0\r\n") == [3.0]


def test_label_values_may_hold_anything() -> None:
    odd = LABELS.replace('model_name="m"', r'model_name="a } b \" \\ # {c}"')
    answer = parse(f"sglang:num_running_reqs{{{odd}}} 3.0\n")
    assert (answer.model, answer.values["running_requests"].tolist()) == ('a } b " \\ # {c}', [3.0])


def test_help_lines_may_hold_anything() -> None:
    page = f'# HELP sglang:num_running_reqs a\\n "b" {{c="d"}} 7\nsglang:num_running_reqs{{{LABELS}}} 3.0\n'
    assert running(page) == [3.0]


def test_samples_and_type_lines_may_be_spelled_apart() -> None:
    page = f"# TYPE sglang:num_running_reqs gauge\nsglang_num_running_reqs{{{LABELS}}} 3.0\n"
    answer = parse(page)
    assert answer.values["running_requests"].tolist() == [3.0]
    assert answer.facts["spelling"] == "underscore"


def test_not_a_number_is_absent() -> None:
    page = f"sglang:num_running_reqs{{{LABELS}}} NaN\nsglang:num_queue_reqs{{{LABELS}}} 1.0\n"
    answer = parse(page)
    assert "running_requests" not in answer.values
    assert answer.warnings == ()


@pytest.mark.parametrize("value", ["+Inf", "-Inf", "1e300"])
def test_what_is_beyond_all_measure_is_absent_and_told(value: str) -> None:
    page = f"sglang:num_running_reqs{{{LABELS}}} {value}\nsglang:num_queue_reqs{{{LABELS}}} 1.0\n"
    answer = parse(page)
    assert "running_requests" not in answer.values
    assert answer.warnings == ("passed over: 1 values beyond all measure",)


def test_a_series_told_twice_counts_once() -> None:
    line = f'sglang:scheduler_stage_seconds_total{{category="idle",forward_overlap="none",{LABELS}}}'
    answer = parse(f"{line} 4.0\n{line} 4.0\n{END}")
    assert answer.values["stages_s"].tolist() == [4.0]
    assert answer.warnings == ("passed over: 1 series told twice",)


def test_a_series_told_twice_with_values_that_differ_is_not_believed() -> None:
    line = f'sglang:scheduler_stage_seconds_total{{category="idle",forward_overlap="none",{LABELS}}}'
    answer = parse(f"{line} 3.0\n{line} 4.0\n{END}")
    assert "stages_s" not in answer.values
    assert answer.warnings == ("passed over: 1 series told twice, with values that differ",)


def test_words_where_numbers_belong_are_passed_over() -> None:
    page = f"sglang:num_running_reqs{{{LABELS}}} many\nsglang:num_queue_reqs{{{LABELS}}} 1.0\n"
    assert "running_requests" not in parse(page).values


def test_a_broken_line_is_passed_over() -> None:
    page = f'sglang:num_running_reqs{{dp_rank="0 3.0\nsglang:num_queue_reqs{{{LABELS}}} 1.0\n'
    answer = parse(page)
    assert answer.values["waiting_requests"].tolist() == [1.0]
    assert answer.warnings


@pytest.mark.parametrize("page", ["", "\n", "# HELP sglang:x y\n", "process_cpu_seconds_total 5.0\n"])
def test_a_page_without_the_engine_is_refused(page: str) -> None:
    with pytest.raises(InputError, match="holds no series of sglang"):
        parse(page)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(InputError, match="UTF-8"):
        SglangMetrics().parse(b"\xff\xfe\x00sglang", "x")


def test_a_page_without_rank_labels_is_unlabelled() -> None:
    bare = 'engine_type="unified",model_name="m",pp_rank="0",tp_rank="{}"'
    page = "".join(f"sglang:num_running_reqs{{{bare.format(rank)}}} 3.0\n" for rank in range(4))
    answer = parse(page)
    assert (answer.unlabelled, answer.ranks, dict(answer.values)) == (True, (), {})
    assert answer.facts["tp_ranks_seen"] == 4


def test_engines_of_one_page_are_told_apart() -> None:
    page = "".join(
        f"sglang:num_running_reqs{{{LABELS.replace('unified', role)}}} {count}\n"
        for role, count in (("prefill", 1), ("decode", 2), ("dynamic", 3))
    )
    answers = SglangMetrics().parse(page.encode(), "x")
    told = {answer.role: answer.values["running_requests"].tolist() for answer in answers}
    assert told == {"prefill": [1.0], "decode": [2.0], None: [3.0]}


def test_the_first_stage_of_a_pipeline_speaks_for_its_rank() -> None:
    later = LABELS.replace('pp_rank="0"', 'pp_rank="1"')
    page = f"sglang:num_running_reqs{{{later}}} 9.0\nsglang:num_running_reqs{{{LABELS}}} 3.0\n"
    answer = parse(page)
    assert (answer.values["running_requests"].tolist(), answer.facts["pp_size_seen"]) == ([3.0], 2)


def test_a_rank_whose_first_process_is_on_another_node_is_not_told_from_placeholders() -> None:
    def line(rank: int, tensor: int) -> str:
        labels = LABELS.replace('dp_rank="0"', f'dp_rank="{rank}"').replace('tp_rank="0"', f'tp_rank="{tensor}"')
        return f'sglang:dp_attention_steps_total{{rank_state="active",{labels}}} 0.0\n'

    second_node = "".join(line(0, tensor) for tensor in range(8, 16))
    answer = parse(second_node)
    assert (answer.ranks, answer.unlabelled) == ((), False)
    assert answer.warnings == ("ranks 0 speak on the page of another node",)
    assert parse("".join(line(rank, 2 * rank + one) for rank in range(4, 8) for one in (0, 1))).ranks == (4, 5, 6, 7)


def test_shares_of_priorities_are_not_totals() -> None:
    page = (
        f'sglang:num_running_reqs{{priority="",{LABELS}}} 5.0\nsglang:num_running_reqs{{priority="1",{LABELS}}} 2.0\n'
    )
    assert running(page) == [5.0]


def test_steps_in_which_all_ranks_prefill_have_nobody_to_hold_back() -> None:
    line = 'sglang:dp_cooperation_realtime_tokens_total{{mode="decode",num_prefill_ranks="{}",{}}} {}\n'
    page = "".join(
        line.format(prefilling, labels, 10 ** (prefilling + 1)) for labels in (LABELS, OTHER) for prefilling in range(3)
    )
    assert parse(page + END).values["tokens_beside_prefill"].tolist() == [100.0, 100.0]


def test_a_process_without_rank_label_beside_others_is_told() -> None:
    bare = LABELS.removeprefix('dp_rank="0",')
    answer = parse(f"sglang:num_running_reqs{{{LABELS}}} 3.0\nsglang:num_queue_reqs{{{bare}}} 1.0\n")
    assert (answer.unlabelled, answer.ranks) == (False, (0,))
    assert any("no dp_rank" in warning for warning in answer.warnings)


@cache
def whole(path: Path) -> tuple[bytes, LedgerAnswer]:
    body = path.read_bytes()
    (answer,) = collector(path).parse(body, "x")
    return body, answer


@cache
def collector(path: Path) -> SglangMetrics | VllmMetrics:
    return VllmMetrics() if "vllm" in str(path) else SglangMetrics()


PAGES = (
    "sglang-0.5.23/prefill-on-one-rank/metrics_t1.prom",
    "sglang-0.5.23/tp16-dp8-default/metrics_t1.prom",
    "sglang-0.5.9/count-skew/metrics_t1.prom",
    "vllm-0.33.0/hot-rank/scrape2.prom",
    "vllm-0.33.0/hot-rank-external-lb/rank3.scrape2.prom",
)
SLOW = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])


def assert_no_wrong_number(partial: LedgerAnswer, full: LedgerAnswer) -> None:
    for name, told in partial.values.items():
        for rank, value in zip(partial.ranks, told, strict=True):
            if not np.isnan(value):
                assert value == full.values[name][full.ranks.index(rank)], (name, rank)


@SLOW
@given(page=st.sampled_from(PAGES), share=st.floats(0, 1))
def test_a_page_cut_anywhere_tells_no_wrong_number(fixtures: Path, page: str, share: float) -> None:
    body, full = whole(fixtures / page)
    try:
        answers = collector(fixtures / page).parse(body[: int(share * len(body))], "x")
    except InputError:
        return
    for answer in answers:
        assert_no_wrong_number(answer, full)


@SLOW
@given(page=st.sampled_from(PAGES), share=st.floats(0, 1))
def test_a_page_cut_between_lines_tells_no_wrong_number(fixtures: Path, page: str, share: float) -> None:
    body, full = whole(fixtures / page)
    lines = body.splitlines(keepends=True)
    try:
        answers = collector(fixtures / page).parse(b"".join(lines[: int(share * len(lines))]), "x")
    except InputError:
        return
    for answer in answers:
        assert_no_wrong_number(answer, full)


def rearrange(body: bytes, random: Random, prefix: bytes, other: bytes) -> bytes:
    """Shuffle the lines, widen the gaps and change the spelling; one line of no interest stays the last."""
    lines = [line.replace(prefix, other, 1) for line in body.splitlines() if not line.startswith(b"#")]
    random.shuffle(lines)
    spaced = [line.replace(b"} ", b"}  ", 1) for line in lines]
    return b"\n".join([*spaced, other + b"end_of_page 0", b""])


@SLOW
@given(page=st.sampled_from(PAGES), seed=st.integers(0, 2**32), other=st.sampled_from([b":", b"_"]))
def test_order_gaps_and_spelling_change_nothing(fixtures: Path, page: str, seed: int, other: bytes) -> None:
    body, full = whole(fixtures / page)
    engine = b"vllm" if "vllm" in page else b"sglang"
    (answer,) = collector(fixtures / page).parse(rearrange(body, Random(seed), engine + b":", engine + other), "x")
    assert (answer.ranks, set(answer.values)) == (full.ranks, set(full.values))
    for name, told in answer.values.items():
        np.testing.assert_allclose(told, full.values[name], rtol=1e-12)
    assert answer.facts["spelling"] == ("colon" if other == b":" else "underscore")


def test_every_page_can_be_read_twice_with_one_collector(fixtures: Path) -> None:
    shared = SglangMetrics()
    for path in sorted(fixtures.glob("sglang-*/*/metrics*.prom")):
        for _ in range(2):
            (answer,) = shared.parse(path.read_bytes(), "x")
        (alone,) = SglangMetrics().parse(path.read_bytes(), "x")
        assert set(answer.values) == set(alone.values)
        for name, told in answer.values.items():
            np.testing.assert_array_equal(told, alone.values[name])


def make_split_page(ranks: range, parts: range, *, order: int = 1) -> bytes:
    """Write a page with a series that is split by how many ranks computed a prefill."""
    lines = []
    for rank in ranks:
        labels = LABELS.replace('dp_rank="0"', f'dp_rank="{rank}"').replace('tp_rank="0"', f'tp_rank="{rank}"')
        split = 'sglang:dp_cooperation_realtime_tokens_total{{mode="decode",num_prefill_ranks="{}",{}}} {}'
        lines += [split.format(part, labels, 0.1 * part + rank) for part in parts]
        lines.append(f"sglang:num_running_reqs{{{labels}}} {rank}")
        lines.append(f"sglang:nobody_reads_this{{{labels}}} 1")
    return "\n".join([*lines[::order], "# EOF", ""]).encode()


def tell(answer: LedgerAnswer) -> str:
    return repr((answer.ranks, {name: told.tolist() for name, told in sorted(answer.values.items())}, answer.facts))


def test_what_a_collector_learnt_before_changes_nothing() -> None:
    pages = [make_split_page(range(8), range(9)), make_split_page(range(4, 8), range(5), order=-1)]
    alone = [tell(SglangMetrics().parse(page, "x")[0]) for page in pages]
    for order in ((0, 1), (1, 0)):
        shared = SglangMetrics()
        assert [tell(shared.parse(pages[place], "x")[0]) for place in order] == [alone[place] for place in order]


def test_series_are_forgotten_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dprankdiag.collectors.exposition.MOST_SERIES", 50)
    shared, page = SglangMetrics(), make_split_page(range(8), range(9))
    assert len({tell(shared.parse(page, "x")[0]) for _ in range(3)}) == 1
    assert tell(shared.parse(make_split_page(range(3), range(2)), "x")[0]) == tell(
        SglangMetrics().parse(make_split_page(range(3), range(2)), "x")[0]
    )


def test_many_more_series_than_at_first_are_learnt() -> None:
    (answer,) = SglangMetrics().parse(make_split_page(range(32), range(200)), "x")
    part = 0.1 * np.arange(1, 199)  # the last one is a step in which all ranks did
    expected = [part.sum() + 198 * rank for rank in range(32)]
    np.testing.assert_allclose(answer.values["tokens_beside_prefill"], expected)


def test_threads_that_learn_at_once_read_what_they_would_read_alone() -> None:
    pages = [make_split_page(range(first, first + 8), range(60)) for first in range(0, 64, 8)]
    shared = SglangMetrics()
    with ThreadPoolExecutor(8) as pool:
        told = [tell(answer) for (answer,) in pool.map(lambda page: shared.parse(page, "x"), pages * 3)]
    assert told == [tell(SglangMetrics().parse(page, "x")[0]) for page in pages] * 3


def test_half_of_a_sum_is_no_sum() -> None:
    page = f"sglang:num_retracted_input_tokens_total{{{LABELS}}} 3.0\n"
    assert "retracted_tokens" not in parse(page + END).values
    page += f"sglang:num_retracted_output_tokens_total{{{LABELS}}} 4.0\n"
    assert parse(page + END).values["retracted_tokens"].tolist() == [7.0]
