"""Which kernel takes longer on the rank that comes last: the differences, their words and their figure."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.catalog.kernels import FAMILIES
from dprankdiag.model.results import REPLAY_FAMILY, STEP_KERNELS
from dprankdiag.model.schema import Columns, join_rows, take_rows
from dprankdiag.views.figures.kernels import _LOOK_OF, LOOKS, MOST_TRACKS, choose_kernels, draw_kernels
from dprankdiag.views.figures.timeline import MAX_BARS
from dprankdiag.views.kernel_names import MOST_CHARACTERS, shorten_names
from dprankdiag.views.kernel_times import (
    MOST_NAMES,
    NOT_BUSY,
    NOT_LAUNCHED,
    Difference,
    Meeting,
    choose_meeting,
    compare_segment,
    compare_step,
    describe_late,
    find_longest_wait,
    list_cells,
    order_ranks,
)
from tests.views.results import HOSTILE, make_tables

LATE = 3


def choose(n_ranks: int = 8) -> tuple[Columns, Meeting]:
    tables = make_tables(n_ranks=n_ranks)
    meetings = tables["worst_meetings"]
    return tables["step_kernels"], choose_meeting(meetings, find_longest_wait(meetings))


def test_the_late_rank_s_longer_kernel_stands_first_and_all_adds_up_to_its_segment() -> None:
    kernels, meeting = choose()
    differences = compare_segment(kernels, meeting)
    assert meeting.late == LATE
    assert (differences[0].name, differences[0].family, differences[0].calls) == ("flash_fwd_kernel", "attention", 1)
    assert {item.name for item in differences[1:]} == {NOT_LAUNCHED, NOT_BUSY}
    arrival, others = meeting.measure_late("arrival_ns")
    start, others_start = meeting.measure_late("start_ns")
    assert sum(item.late_ns for item in differences) == arrival - start
    longer = sum(item.longer_ns for item in differences)
    assert longer == pytest.approx(arrival - start - (others - others_start), abs=0.02 * longer)
    assert [item.longer_ns for item in differences] == sorted((i.longer_ns for i in differences), reverse=True)


def test_over_the_whole_step_who_comes_last_spends_least_in_the_collective() -> None:
    kernels, meeting = choose()
    whole = compare_step(kernels, meeting)
    assert (whole[0].family, whole[-1].family) == ("attention", "collective")
    mine = take_rows(kernels, kernels["rank"] == LATE)
    assert sum(item.late_ns for item in whole) == mine["own_ns"].sum() + mine["idle_ns"].sum()


def test_a_kernel_that_only_one_side_runs_counts_as_nothing_on_the_other() -> None:
    kernels, meeting = choose()
    is_extra = (kernels["rank"] == LATE) & (kernels["family"] == "attention")
    kernels = {**kernels, "name": np.where(is_extra, "recompute", kernels["name"])}
    found = {item.name: item for item in compare_segment(kernels, meeting)}
    assert (found["recompute"].median_ns, found["flash_fwd_kernel"].late_ns) == (0, 0)
    assert found["flash_fwd_kernel"].calls == 0


@pytest.mark.parametrize("kept", [[LATE], [0, 1], []])
def test_without_the_late_rank_or_another_nothing_is_compared(kept: list[int]) -> None:
    kernels, meeting = choose()
    assert compare_segment(take_rows(kernels, np.isin(kernels["rank"], kept)), meeting) == []


def test_words_name_the_rank_how_late_it_is_and_the_kernel() -> None:
    kernels, meeting = choose()
    says = describe_late(meeting, compare_segment(kernels, meeting))
    assert says.startswith(f"Rank {LATE} comes last, ")
    assert "longer than they do since they met before" in says
    assert "flash_fwd_kernel (attention)" in says


def test_who_was_let_go_late_is_not_blamed_for_this_segment() -> None:
    _, meeting = choose()
    is_late = meeting.here["rank"] == LATE
    arrival = np.where(is_late, meeting.here["arrival_ns"].min() + 500, meeting.here["arrival_ns"].min())
    here = {**meeting.here, "arrival_ns": arrival, "start_ns": arrival - 1_000}
    moved = Meeting(meeting.position, meeting.awaited, LATE, True, here, meeting.between, 500)
    assert "behind by 0.50 µs from the meeting before on" in describe_late(moved, [])


def make_meetings(last: list[list[int]], stopped: bool = True) -> Columns:
    """Make meetings `(positions, ranks)`, 1 µs apart, with who comes last to each."""
    n_positions, n_ranks = np.shape(last)
    position = np.repeat(np.arange(n_positions), n_ranks)
    rank = np.tile(np.arange(n_ranks), n_positions)
    last_rank = np.ravel(last)
    wait = np.where(rank == last_rank, 0, 100)
    arrival = position * 1_000 + 900 - wait
    return {
        "position": position,
        "rank": rank,
        "start_ns": position * 1_000,
        "arrival_ns": arrival,
        "wait_ns": wait,
        "end_ns": np.where(stopped, position * 1_000 + 1_000, arrival + wait),
        "last_rank": last_rank,
        "awaited": position,
    }


def test_meetings_of_some_of_the_ranks_are_part_of_what_lies_before_a_meeting_of_all() -> None:
    of_pairs = make_meetings([[2, 2, 2, 2], [0, 0, 3, 3], [1, 1, 2, 2], [3, 3, 3, 3]])
    meeting = choose_meeting(of_pairs, 3)
    assert meeting.here["start_ns"].tolist() == [1_000] * 4
    assert np.unique(meeting.between["position"]).tolist() == [1, 2, 3]
    pair = choose_meeting(of_pairs, 2)
    assert (pair.late, pair.here["rank"].tolist()) == (1, [0, 1])
    assert pair.here["start_ns"].tolist() == [2_000] * 2


def test_calls_that_stop_nobody_do_not_begin_a_segment() -> None:
    meetings = make_meetings([[0, 0], [1, 1], [1, 1]], stopped=False)
    assert choose_meeting(meetings, 2).here["start_ns"].tolist() == [0, 0]


def test_where_the_last_to_come_is_unknown_the_words_say_so() -> None:
    unknown = make_meetings([[-1, -1, -1]])
    meeting = choose_meeting(unknown, 0)
    assert not meeting.is_known
    assert describe_late(meeting, []).startswith("Who is waited for here is not known.")


def test_of_very_many_names_the_largest_differences_are_listed() -> None:
    many = [Difference(f"kernel{number}", "gemm", 1, number, 0) for number in range(MOST_NAMES + 50)][::-1]
    cells = list_cells(many)
    assert len(cells) == MOST_NAMES
    assert cells[0][0] == f"kernel{MOST_NAMES + 49}"


@pytest.mark.parametrize("text", [*HOSTILE, "void " + "x" * 900])
def test_names_are_shortened_and_keep_their_whole_text_over_it(text: str) -> None:
    ((cell, *_),) = list_cells([Difference(text, "gemm", 1, 5, 3)])
    short, full = (cell, cell) if isinstance(cell, str) else cell
    assert len(short) <= MOST_CHARACTERS
    assert short.isprintable()
    assert full.isprintable()
    assert "x" * 900 not in text or "x" * 900 in full


def test_names_that_begin_alike_show_where_they_differ() -> None:
    head = "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, (unsigned int)0, (unsigned int)"
    names = [f"{head}{number}, (unsigned int)128>(float *, int *)" for number in (4096, 7168)]
    short = shorten_names([*names, "void other"])
    assert [str(number) in short[name] for number, name in zip((4096, 7168), names, strict=True)] == [True, True]
    assert all(short[name].startswith("deep_gemm::sm90_fp8_gemm") for name in names)
    assert short["void other"] == "other"


@given(st.lists(st.text(max_size=300), max_size=8))
def test_no_name_is_longer_than_there_is_room_for(names: list[str]) -> None:
    assert all(len(text) <= MOST_CHARACTERS for text in shorten_names(names).values())


def test_every_family_has_a_look() -> None:
    assert set(_LOOK_OF) | {"other"} == {*FAMILIES, REPLAY_FAMILY}
    assert set(_LOOK_OF.values()) <= set(LOOKS)


def test_bars_are_the_kernels_between_two_meetings_cut_where_the_wait_ends() -> None:
    kernels, meeting = choose()
    order = order_ranks(meeting, kernels, {6})
    assert order[:3] == [LATE, 6, meeting.first]
    shown = choose_kernels(kernels, meeting, order)
    assert shown.ranks == tuple(range(8))
    assert shown.left_out == 0
    length = shown.bars["end_ns"] - shown.bars["start_ns"]
    assert length[shown.bars["look"] == "waiting in a collective"].sum() == meeting.here["wait_ns"].sum()
    figure = draw_kernels(shown, meeting, {6})
    drawn = {trace.name: float(np.sum(trace.x)) for trace in figure.data}
    assert set(drawn) == {"attention", "waiting in a collective", "collective"}
    size = {"µs": 1e3, "ms": 1e6}[figure.layout.xaxis.title.text.partition("(")[2].partition(")")[0]]
    assert drawn["attention"] * size == pytest.approx(length[shown.bars["look"] == "attention"].sum())
    assert "<b>6</b>" in figure.layout.yaxis.ticktext
    (line,) = figure.layout.shapes
    assert line.x0 * size == pytest.approx(meeting.here["arrival_ns"].max() - meeting.here["start_ns"].min())


def test_streams_of_a_rank_share_its_track_side_by_side() -> None:
    kernels, meeting = choose()
    kernels = {**kernels, "stream": np.where(kernels["family"] == "collective", 20, 7)}
    figure = draw_kernels(choose_kernels(kernels, meeting, [LATE, 0]), meeting, ())
    offsets = {trace.name: set(np.round(trace.offset, 6).tolist()) for trace in figure.data}
    assert (offsets["attention"], offsets["collective"]) == ({-0.4}, {0.0})
    assert all(set(np.round(trace.width, 6).tolist()) == {0.4} for trace in figure.data)


def split_all(kernels: Columns, parts: int) -> Columns:
    """Cut every kernel into so many of equal length."""
    length = (kernels["end_ns"] - kernels["start_ns"]) // parts
    cut: list[Columns] = []
    for number in range(parts):
        start = kernels["start_ns"] + number * length
        cut.append({**kernels, "start_ns": start, "end_ns": start + length, "own_ns": length})
    return join_rows(STEP_KERNELS, cut)


@pytest.mark.parametrize("n_ranks, parts", [(64, 1), (64, 100), (8, 2_000)])
def test_there_are_never_more_bars_than_there_is_room_for(n_ranks: int, parts: int) -> None:
    kernels, meeting = choose(n_ranks)
    kernels = split_all(kernels, parts)
    shown = choose_kernels(kernels, meeting, order_ranks(meeting, kernels, {7}))
    assert len(shown.bars["look"]) <= MAX_BARS
    assert LATE in shown.ranks
    assert len(shown.ranks) <= MOST_TRACKS
    assert (shown.left_out > 0) == (parts == 2_000)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_names_stay_text_in_the_figure(text: str) -> None:
    kernels, meeting = choose()
    kernels = {**kernels, "name": np.full(len(kernels["name"]), text, object)}
    figure: Any = draw_kernels(choose_kernels(kernels, meeting, [LATE]), meeting, ())
    for trace in figure.data:
        for told in trace.customdata:
            assert told.replace("<br>", "").count("<") == 0
