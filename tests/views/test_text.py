import re
from typing import Any

import pytest

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.views import text as view
from tests import builders

ESCAPE = re.compile(r"\x1b\[[0-9;]*m")


def render(diagnosis: Diagnosis, **options: Any) -> str:
    return view.render(diagnosis, {}, **options)


def test_the_headline_comes_first() -> None:
    diagnosis = builders.diagnosis()
    assert render(diagnosis).startswith(diagnosis.headline)


def test_a_finding_shows_all_that_is_known_of_it() -> None:
    text = render(builders.diagnosis(), width=200)
    for part in (
        "1. critical: load.context, rank 3",
        "sglang::scheduler_DP3 (pid 4103)",
        "one rank, steadily; 0.000 to 1.200 s",
        "0.25 s, 21 % of the time (90 % interval: 19 % to 23 %); 6.30 ms a step; replayed",
        "attention_work_ratio 2.5, expected 1, n = 640",
        "single_point.gpu would need: equal-work kernels",
        "Route by KV tokens, not by request count. Gain: 15 % (90 % interval: 10 % to 20 %), replayed",
    ):
        assert part in text


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_page(width: int) -> None:
    for diagnosis in (builders.diagnosis(), builders.even_diagnosis(), builders.undecided_diagnosis()):
        assert max(len(line) for line in render(diagnosis, width=width).splitlines()) <= width


def test_colour_changes_nothing_but_colour() -> None:
    plain = render(builders.diagnosis())
    colored = ESCAPE.sub("", render(builders.diagnosis(), color=True))
    assert "\x1b" not in plain
    assert [line.rstrip() for line in colored.splitlines()] == plain.splitlines()


def test_the_account_of_lost_time_names_every_part() -> None:
    section = _section(render(builders.diagnosis()), "Lost time")
    for name in ("load.context", "unexplained", "total", "jitter"):
        assert any(line.split()[0] == name for line in section)


def test_lost_time_that_cannot_be_computed_says_so_with_the_replay_error() -> None:
    time = builders.time_account(replay_error_ratio=0.08)
    text = render(builders.diagnosis(lost=builders.NOTHING_LOST, time=time), width=100)
    assert "Could not be computed from this input (predicting steps from their neighbours errs by 8.0 %)." in text


def test_a_finding_without_a_loss_does_not_claim_one() -> None:
    finding = builders.finding(lost_ns=None, lost_ratio=None, interval=None, recoverable_ns=None, basis="ledger")
    text = render(builders.diagnosis(findings=(finding,), lost=builders.NOTHING_LOST))
    assert "not computable from this input (ledger)" in text


def test_the_ranks_table_marks_the_named_rank_and_says_who_waits_least() -> None:
    section = _section(render(builders.diagnosis()), "Ranks")
    marked = [line for line in section if line.strip().startswith("* 3")]
    assert len(marked) == 1
    assert "the one that waits least" in section[-1]


def test_a_healthy_page_does_not_speak_of_a_late_rank() -> None:
    text = render(builders.even_diagnosis())
    assert "The ranks are even" in text
    assert "waits least" not in text
    assert "single_point.host" in text


def test_an_inconclusive_page_says_that_it_is_not_healthy_and_what_to_do() -> None:
    text = render(builders.undecided_diagnosis())
    assert "not the same as" in text
    assert "get it with: nsys profile" in text
    assert "order, assumed" in render(builders.undecided_diagnosis(), width=120)


def test_a_uniform_page_sends_the_reader_elsewhere() -> None:
    text = render(builders.even_diagnosis(status="uniform"))
    assert "look elsewhere" in text


def test_an_empty_diagnosis_still_makes_a_page() -> None:
    text = render(builders.undecided_diagnosis(ranks=(), inputs=(), abstentions=(), headline=""))
    assert "inconclusive" in text
    assert "None could be told apart." in text


def test_an_assumed_rank_is_shown_as_assumed() -> None:
    ranks = tuple(builders.rank(number, grade="assumed", identified_by="order") for number in range(8))
    assert "(by order, assumed)" in render(builders.diagnosis(ranks=ranks), width=120)


def test_escape_sequences_of_a_process_name_are_shown_not_obeyed() -> None:
    ranks = (builders.rank(3, process="\x1b]0;evil\x07\u202ename [red]x[/red]"),)
    text = render(builders.diagnosis(ranks=ranks), width=120)
    assert "\x1b" not in text
    assert "\\x1b]0;evil\\x07\\u202ename [red]x[/red]" in text


def test_a_large_deployment_keeps_the_named_rank_on_the_page() -> None:
    ranks = tuple(builders.rank(number) for number in range(320))
    finding = builders.finding(ranks=(317,))
    text = render(builders.diagnosis(ranks=ranks, findings=(finding,)))
    assert "* 317" in text
    assert "and 288 more" in text


def test_matched_collectives_are_never_rounded_up_to_all() -> None:
    assert "640, 0.2 % of them not matched" in render(builders.diagnosis())


def test_input_warnings_and_gaps_are_shown() -> None:
    source = builders.source(status="partial", warnings=("the last page is missing",), lacked=("GPU_METRICS", "NVTX"))
    text = render(builders.diagnosis(inputs=(source,)))
    assert "warning: the last page is missing" in text
    assert "lacks GPU_METRICS, NVTX" in text


def _section(text: str, heading: str) -> list[str]:
    lines = text.splitlines()
    start = lines.index(heading) + 1
    rest = lines[start:]
    end = rest.index("") if "" in rest else len(rest)
    return rest[:end]


def test_a_long_name_of_an_engine_leaves_ranks_and_times_whole() -> None:
    ranks = tuple(builders.rank(number, engine="deployment-of-the-29th-of-november") for number in (3, 12))
    page = render(builders.diagnosis(ranks=ranks, findings=()), width=80)
    lines = [line for line in page.splitlines() if "deployment-of… " in line]
    assert [line.split("… ")[1].split()[0] for line in lines] == ["3", "12"]
    assert all(line.count(" ms ") + line.count(" s ") == 4 for line in lines)
