"""The chain of blame leads from a step's end to its start without a gap, over whoever was waited for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.harness.suites import WORLDS, write_world
from dprankdiag.model.schema import ABSENT_ID, Columns
from dprankdiag.pipelines.chain import trace_chain
from dprankdiag.pipelines.diagnose import diagnose
from dprankdiag.pipelines.step_record import StepRecord
from tests.analysis.builders import TRANSFER_NS
from tests.analysis.test_blame import LATE_NS, SLOWER_NS, WAY_NS, meet_in_pairs


def list_meetings(**told: Any) -> Columns:
    return StepRecord(0, meet_in_pairs(3, **told)).list_meetings(1)


def test_a_chain_leads_back_over_the_rank_that_was_released_late_to_the_one_that_was_late() -> None:
    links = trace_chain(list_meetings())
    ways = [link for link in links if not link.is_out]
    assert [(link.rank, link.position) for link in ways] == [(3, 0), (2, 1)]
    assert [link.end_ns - link.start_ns for link in ways] == [WAY_NS + LATE_NS, WAY_NS + SLOWER_NS]
    assert [link.work_ns for link in ways] == [WAY_NS + LATE_NS, WAY_NS + SLOWER_NS]
    assert [link.end_ns - link.start_ns for link in links if link.is_out] == [TRANSFER_NS, TRANSFER_NS]
    assert (ways[0].behind_ns, ways[0].inherited_ns) == (LATE_NS, 0)
    # Of the others at the last meeting rank 3 had been released as late, so that half of them were.
    assert (ways[1].behind_ns, ways[1].inherited_ns) == (LATE_NS + SLOWER_NS, LATE_NS)


def test_a_step_saved_by_an_older_version_has_a_chain_too() -> None:
    meetings = list_meetings()
    older = {**meetings, "awaited": np.full(len(meetings["rank"]), ABSENT_ID, np.int32)}
    assert trace_chain(older) == trace_chain(meetings)


def test_a_chain_ends_where_it_is_not_known_who_was_waited_for() -> None:
    meetings = list_meetings()
    unknown = np.where(meetings["position"] == 0, ABSENT_ID, meetings["last_rank"])
    links = trace_chain({**meetings, "last_rank": unknown.astype(np.int32)})
    assert [link.rank for link in links] == [None, 2, 2, 0]
    assert links[0].start_ns == meetings["start_ns"].min()


@pytest.mark.parametrize("name", ["attention_tp_load", "deepep_load", "overlap_attention_tp_load", "host_burst"])
def test_the_links_of_a_chain_close_up_to_the_length_of_the_step(name: str, tmp_path: Path) -> None:
    meetings = diagnose(write_world(WORLDS[name], tmp_path)).tables["worst_meetings"]
    links = trace_chain(meetings)
    assert [link.start_ns for link in links[1:]] == [link.end_ns for link in links[:-1]]
    assert links[-1].end_ns == meetings["end_ns"][meetings["position"] == meetings["position"].max()].max()
    assert links[0].start_ns <= meetings["start_ns"][meetings["position"] == 0].max()
    for link in links:
        assert 0 <= link.work_ns <= link.end_ns - link.start_ns
        assert (link.inherited_ns or 0) <= (link.behind_ns or 0)
