"""What the screens are given: of a saved diagnosis the one, of running engines the last tick."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from dprankdiag.dashboard.history import KEPT_ROWS, KEPT_TICKS, EventLog, History
from dprankdiag.dashboard.provider import FullStep, LiveProvider, show_saved
from dprankdiag.errors import UsageError
from dprankdiag.harness.ledger_worlds import LEDGER_WORLDS, Tick, simulate_ledger
from dprankdiag.model.ledger_results import LEDGER_HISTORY, LEDGER_RANKS
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.watch import Watcher
from dprankdiag.units import NS_PER_S
from tests import builders
from tests.dashboard.sight import show_example
from tests.ledger_runs import read_pages

Told = LedgerAnswer | NoData


class Replay:
    """Answers as a deployment that is simulated does, a poll a call; fails where it is told to."""

    def __init__(self, ticks: Sequence[Tick], failing: Sequence[int] = ()) -> None:
        self._ticks = iter(enumerate(ticks))
        self._failing = failing

    def poll(self) -> Sequence[Told]:
        number, tick = next(self._ticks)
        if number in self._failing:
            return [NoData("sglang-metrics", "http://engine", tick.epoch_ns, "refused")]
        return [replace(answer, where=f"http://engine/{answer.where}") for answer in read_pages(tick)]

    def close(self) -> None:
        """Have nothing to close."""


def make_provider(replay: Replay) -> LiveProvider:
    seconds = itertools.count(1)
    return LiveProvider("engine", replay, Watcher(), interval_s=1.0, moment=lambda: next(seconds) * NS_PER_S)


def make_ranks(n_ranks: int) -> dict[str, Columns]:
    table = {column.name: np.zeros(n_ranks, column.dtype) for column in LEDGER_RANKS.columns}
    return {LEDGER_RANKS.name: table | {"rank": np.arange(n_ranks, dtype=np.int32)}}


@pytest.mark.parametrize("step", [10, 3])
def test_an_open_recording_gives_any_step_and_a_bundle_the_worst(step: int) -> None:
    opened = show_example("load-one-rank.sqlite").snapshot
    saved = replace(opened, steps=())
    worst = int(opened.tables["worst_steps"]["step"][0])
    of_recording, of_bundle = opened.take_step(0, step), saved.take_step(0, step)
    assert of_recording.kernels is not None
    assert of_recording.meetings is not None
    assert set(of_recording.kernels["step"].tolist()) == {step}
    if step != worst:
        assert of_bundle == FullStep(None, None)
        return
    for mine, other in ((of_recording.kernels, of_bundle.kernels), (of_recording.meetings, of_bundle.meetings)):
        assert other is not None
        assert {name: values.tolist() for name, values in mine.items()} == {n: v.tolist() for n, v in other.items()}


def test_a_group_that_is_not_there_has_no_step() -> None:
    assert show_saved("x", builders.diagnosis(), {}).snapshot.take_step(0, 0) == FullStep(None, None)


def test_a_saved_diagnosis_never_changes() -> None:
    provider = show_saved("run.dprank", builders.diagnosis(), {})
    assert provider.interval_s is None
    assert provider.latest() is provider.latest()


def test_every_tick_is_a_snapshot_of_its_own() -> None:
    ticks = list(simulate_ledger(replace(LEDGER_WORLDS["host"], seconds=30.0)))
    provider = make_provider(Replay(ticks, failing=[len(ticks) - 2]))
    assert provider.latest() is None
    seen = []
    for _ in ticks:
        provider.tick()
        snapshot = provider.latest()
        assert snapshot is not None
        seen.append(snapshot)
    assert [snapshot.revision for snapshot in seen] == list(range(len(ticks)))
    assert seen[-1].diagnosis.findings[0].cause == "single_point.host"
    history = seen[-1].tables[LEDGER_HISTORY.name]
    assert len(np.unique(history["at_ns"])) == len(ticks) - 1
    assert [item.reason for item in seen[-2].failures] == ["refused"]
    texts = [event.text for event in seen[-1].events]
    assert any(text.startswith("begins: single_point.host, rank 6") for text in texts)
    assert "begins: no data from http://engine (refused)" in texts


def test_a_recording_that_cannot_be_written_is_said_on_the_screen() -> None:
    ticks = list(simulate_ledger(replace(LEDGER_WORLDS["healthy"], seconds=30.0)))

    def keep(told: Sequence[Told], at_ns: int) -> None:
        raise UsageError("the disk is full", where="day.dprec")

    provider = LiveProvider("engine", Replay(ticks), Watcher(), interval_s=60.0, keep=keep)
    with provider:
        deadline = threading.Event()
        while provider.latest() is None:
            assert not deadline.wait(0.02)
    snapshot = provider.latest()
    assert snapshot is not None
    assert snapshot.trouble == "day.dprec: the disk is full"


@pytest.mark.parametrize("n_ranks", [8, 1024])
def test_the_history_does_not_grow_for_ever(n_ranks: int) -> None:
    history = History()
    tables = make_ranks(n_ranks)
    for number in range(KEPT_TICKS + 50):
        history.add(tables, number)
    rows = history.tables()[LEDGER_HISTORY.name]
    assert len(rows["rank"]) == n_ranks * min(KEPT_TICKS, KEPT_ROWS // n_ranks)
    assert rows["at_ns"].max() == KEPT_TICKS + 49


def test_a_tick_without_numbers_leaves_the_history_alone() -> None:
    history = History()
    history.add({}, 1)
    assert history.tables() == {}


def test_what_begins_and_ends_is_told_once() -> None:
    log = EventLog()
    for at_ns, diagnosis in enumerate([builders.diagnosis(), builders.diagnosis(), builders.even_diagnosis()]):
        log.note(diagnosis, (), at_ns)
    named = builders.diagnosis().findings[0]
    newest = [(event.at_ns, event.text.split(":")[0]) for event in log.newest()]
    assert newest == [(2, "ends"), (0, "begins")]
    assert named.cause in log.newest()[0].text
