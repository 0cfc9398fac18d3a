"""From snapshots of engines' loads to one diagnosis: two moments, or a series with findings that come and go."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from dprankdiag.model.diagnosis import Diagnosis, Finding
from dprankdiag.model.ledgers import Ledger, LedgerFile
from dprankdiag.model.schema import Columns
from dprankdiag.pipelines.device_evidence import attach_devices
from dprankdiag.pipelines.join import join_diagnoses
from dprankdiag.pipelines.ledger_files import join_files
from dprankdiag.pipelines.ledger_history import tabulate_history
from dprankdiag.pipelines.ledger_tables import tabulate_ledgers
from dprankdiag.pipelines.ledgers import diagnose_view, view_whole
from dprankdiag.pipelines.tracking import find_episodes, is_series
from dprankdiag.pipelines.untimed import ENGINE


def diagnose_ledger_files(
    files: Sequence[LedgerFile], interval_s: float | None = None, expect_ranks: int | None = None
) -> tuple[Diagnosis, dict[str, Columns]]:
    """Judge what files tell of engines' loads: one diagnosis, in which several targets have names of their own.

    Returns:
        The diagnosis, and the tables of what each rank told, in all and over time.

    Raises:
        UsageError: two targets with equal labels cannot be told apart.
    """
    joined = join_files(files, interval_s)
    ledgers = name_ledgers(joined, {file.name for file in files if file.name is not None})
    views = [view_whole(ledger, expect_ranks) for ledger in ledgers]
    diagnoses = [diagnose_view(view, find_lasting(view.window.ledger, expect_ranks)) for view in views]
    names = {one.name: named.name for one, named in zip(joined, ledgers, strict=True)}
    diagnosis = attach_devices(join_diagnoses(diagnoses, ()), files, names)
    return diagnosis, tabulate_ledgers(views) | tabulate_history(ledgers, expect_ranks)


def name_ledgers(ledgers: Sequence[Ledger], given: Collection[str]) -> list[Ledger]:
    """Call the only target "default"; of several, those without a name from the user by the end of their path."""
    if len(ledgers) == 1 and ledgers[0].name not in given:
        return [replace(ledgers[0], name=ENGINE)]
    short = [Path(ledger.name).name for ledger in ledgers]
    return [
        ledger if ledger.name in given or short.count(name) > 1 or not name else replace(ledger, name=name)
        for ledger, name in zip(ledgers, short, strict=True)
    ]


def find_lasting(ledger: Ledger, expect_ranks: int | None = None) -> list[Finding]:
    """List what lasts within a ledger that is long enough to be followed from moment to moment."""
    return find_episodes(ledger, expect_ranks) if is_series(ledger) else []
