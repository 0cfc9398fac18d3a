from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import NoData
from dprankdiag.pipelines.diagnose import Options, diagnose
from dprankdiag.pipelines.poll import Poller
from dprankdiag.pipelines.recordings import read_recorded_file
from dprankdiag.readers.sniff import sniff
from dprankdiag.store.recorder import Recorder
from tests.small_engine import SmallEngine, sglang_pages
from tests.store.told import plain_answer

SECOND = 10**9
START_NS = 1_764_000_000 * SECOND


def record_engine(path: Path, engine: SmallEngine, url: str = "http://127.0.0.1:30000", ticks: int = 30) -> None:
    """Record an engine that goes on in a straight line; its pages' two moments lie 60 s apart."""
    now_ns = [START_NS]
    with (
        Poller([url], transport=engine.transport(), clock=lambda: now_ns[0]) as poller,
        Recorder(path) as recorder,
    ):
        for tick in range(ticks):
            engine.grow_to(tick / 60)
            recorder.write(poller.poll(), now_ns[0])
            now_ns[0] += SECOND


def test_a_recording_gives_the_verdict_of_its_engine(fixtures: Path, tmp_path: Path) -> None:
    path = tmp_path / "day.dprec"
    record_engine(path, SmallEngine(sglang_pages(fixtures / "sglang-0.5.23" / "single-slow-rank")))
    assert sniff(path) == "recording"
    diagnosis = diagnose([path]).diagnosis
    assert {(finding.cause, finding.ranks) for finding in diagnosis.findings if finding.severity != "info"} == {
        ("single_point.host", (6,))
    }
    (source,) = diagnosis.inputs
    assert (source.path, source.kind, source.ranks) == (str(path), "recording", tuple(range(8)))


def test_two_engines_of_a_recording_are_judged_apart(fixtures: Path, tmp_path: Path) -> None:
    path = tmp_path / "day.dprec"
    folder = fixtures / "sglang-0.5.23"
    record_engine(path, SmallEngine(sglang_pages(folder / "count-skew")), "http://127.0.0.1:1")
    record_engine(path, SmallEngine(sglang_pages(folder / "balanced")), "http://127.0.0.1:2")
    diagnosis = diagnose([path], Options()).diagnosis
    assert {rank.engine for rank in diagnosis.ranks} == {"127.0.0.1:1", "127.0.0.1:2"}
    named = {(finding.engine, finding.cause, finding.ranks) for finding in diagnosis.findings}
    assert ("127.0.0.1:1", "load.requests", (3,)) in named
    assert {engine for engine, _, _ in named} == {"127.0.0.1:1"}


def test_polls_without_data_are_told_with_the_recording(tmp_path: Path) -> None:
    path = tmp_path / "day.dprec"
    gap = NoData("sglang-loads", "http://a:30000/v1/loads", 5, "no answer in time")
    with Recorder(path) as recorder:
        for tick in range(3):
            recorder.write([plain_answer(tick), gap], tick * SECOND)
    file = read_recorded_file(path)
    assert file.source.warnings == ("http://a:30000/v1/loads: 3 polls gave no data, the last one: no answer in time",)
    assert len(file.gaps) == 3
    assert set(file.places) == {"http://a:30000"}


def test_a_recording_without_any_answer_cannot_be_used(tmp_path: Path) -> None:
    path = tmp_path / "day.dprec"
    with Recorder(path) as recorder:
        recorder.write([NoData("metrics", "http://a:1/metrics", 5, "cannot be reached")], 5)
    with pytest.raises(InputError, match="no engine answered: cannot be reached"):
        read_recorded_file(path)
