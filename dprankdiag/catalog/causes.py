"""Say what each cause means, how bad it is where no loss is known, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

if TYPE_CHECKING:
    from dprankdiag.model.diagnosis import Severity

_SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True, slots=True)
class Action:
    """Something to do about a cause.

    Attributes:
        key: stable name of the action, unique within its cause.
        source: the release, report or tool the action rests on.
        cures: it removes the cause; else it only looks closer.
        whole: it removes all that the replay undoes, so that the replayed gain is its gain.
    """

    key: str
    text: str
    source: str
    cures: bool = True
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Cause:
    """A row of the catalogue of causes.

    Attributes:
        key: `class.name`.
        cause_class: the part before the point.
        title: a few words for headings.
        says: one short sentence.
        default_severity: where no lost time can be computed.
        remedies: actions in the order worth trying; never empty.
        warning_work_ratio: busiest over mean work that makes a finding without a loss a warning; None if no such rule.
    """

    key: str
    cause_class: str
    title: str
    says: str
    default_severity: Severity
    remedies: tuple[Action, ...]
    warning_work_ratio: float | None = None

    @property
    def is_unknown(self) -> bool:
        """Tell whether the class is known but not the kind."""
        return self.key.endswith(".unknown")


def load_causes() -> dict[str, Cause]:
    """Load all causes by key, in the order of the catalogue."""
    return dict(_load_shipped())


@lru_cache(maxsize=1)
def _load_shipped() -> Mapping[str, Cause]:
    rows = read_catalog("causes.toml")
    try:
        return {key: _make_cause(key, row) for key, row in rows.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where="catalogue causes.toml") from error


def _make_cause(key: str, row: Mapping[str, Any]) -> Cause:
    if row["class"] != key.split(".")[0]:
        raise ValueError(f"cause {key} is of class {row['class']}")
    if row["default_severity"] not in _SEVERITIES:
        raise ValueError(f"cause {key} has severity {row['default_severity']}")
    return Cause(
        key=key,
        cause_class=row["class"],
        title=row["title"],
        says=row["says"],
        default_severity=row["default_severity"],
        remedies=tuple(Action(**remedy) for remedy in row["remedies"]),
        warning_work_ratio=row.get("warning_work_ratio"),
    )
