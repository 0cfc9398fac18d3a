"""Read a recording as an input of a diagnosis."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer, LedgerFile, NoData
from dprankdiag.model.recordings import RECORDING
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.failures import find_base
from dprankdiag.pipelines.live import arrange
from dprankdiag.store.recording import read_recording


def read_recorded_file(path: Path) -> LedgerFile:
    """Read a recording; it may hold several engines, and answers of one tick are of one moment.

    Raises:
        InputError: it holds no answer, or is of a newer version.
        DamagedInput: it is broken.
    """
    answers, gaps = read_recording(path, by_tick=True)
    failed = tuple(gap for gap in gaps if not gap.absent)
    if not answers:
        why = f": {failed[0].reason}" if failed else ""
        raise InputError(f"a recording in which no engine answered{why}", where=str(path), mend="record again")
    arranged, homes, notes = arrange(answers)
    source = Source(
        str(path),
        RECORDING,
        "used",
        producer=", ".join(sorted({answer.engine for answer in answers})),
        ranks=tuple(sorted({rank for answer in answers for rank in answer.ranks})),
        warnings=(*_list_warnings(answers, failed), *notes),
    )
    # The recording is the input that is reported, not the addresses in it.
    told = tuple(replace(answer, where=str(path), warnings=()) for answer in arranged)
    places = tuple(homes[find_base(answer)] for answer in arranged)
    return LedgerFile(source, told, str(path.parent), gaps=gaps, places=places)


def _list_warnings(answers: Sequence[LedgerAnswer], failed: Sequence[NoData]) -> Iterator[str]:
    for where in dict.fromkeys(gap.where for gap in failed):
        mine = [gap for gap in failed if gap.where == where]
        yield f"{where}: {len(mine)} polls gave no data, the last one: {mine[-1].reason}"
    yield from dict.fromkeys(f"{answer.where}: {text}" for answer in answers for text in answer.warnings)
