"""What each rank told, as rows for views that show tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import accumulate

from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.ledger_results import LEDGER_RANKS
from dprankdiag.model.results import find_table
from dprankdiag.units import format_ns, format_ratio
from dprankdiag.views.base import Tables
from dprankdiag.views.words import ABSENT, find_named, format_count

TITLE = "What each rank tells"

_SHOWN: tuple[tuple[str, str, Callable[[float], str]], ...] = (
    ("running_requests", "running", format_count),
    ("waiting_requests", "waiting", format_count),
    ("held_tokens", "KV tokens", format_count),
    ("kv_usage_ratio", "KV use", format_ratio),
    ("attention_pairs", "pairs", format_count),
    ("computed_prompt_tokens", "prompts", format_count),
    ("cache_hit_ratio", "hits", format_ratio),
    ("accepted_tokens", "accepted", format_count),
    ("idle_share_ratio", "idle", format_ratio),
    ("border_wait_ns", "wait", format_ns),
    ("step_time_ns", "step", format_ns),
    ("retracted_requests", "retracted", format_count),
    ("snapshot_age_ns", "age", format_ns),
)
"""Column of the table, heading, and how its values are written."""

LEGEND = (
    "pairs, prompts (tokens computed) and retracted are counted over the window; wait is the mean at the border of a "
    "step; age is that of the load snapshot against the freshest."
)

IDLE_SHARE = 0.5
"""Share of the steps without work of its own from which a rank is called idle."""


def list_ledger_rows(
    diagnosis: Diagnosis, tables: Tables, most: int, width: int | None = None
) -> tuple[tuple[str, ...], list[list[str]]]:
    """List headings and rows, one a rank, of the numbers that any rank told; no rows without a ledger.

    Args:
        most: rows there is room for; ranks that are named go first.
        width: characters there is room for; columns at the end give way.
    """
    told = find_table(tables, LEDGER_RANKS)
    if told is None or not len(told["rank"]):
        return (), []
    shown = [one for one in _SHOWN if not all(math.isnan(value) for value in told[one[0]])]
    named = find_named(diagnosis)
    several = len(set(told["engine"])) > 1
    keys = [(str(engine), int(rank)) for engine, rank in zip(told["engine"], told["rank"], strict=True)]
    chosen = sorted(sorted(range(len(keys)), key=lambda row: (keys[row] not in named, keys[row]))[:most])
    rows = []
    for row in chosen:
        engine, rank = keys[row]
        label = f"{engine} {rank}" if several else str(rank)
        cells = [_write(float(told[name][row]), write) for name, _, write in shown]
        rows.append([f"* {label}" if keys[row] in named else label, *cells])
    headings = ("rank", *(heading for _, heading, _ in shown))
    count = _count_fitting(headings, rows, width)
    return headings[:count], [row[:count] for row in rows]


def _count_fitting(headings: tuple[str, ...], rows: list[list[str]], width: int | None) -> int:
    """Count the columns that fit side by side, two characters apart."""
    if width is None:
        return len(headings)
    widths = [max(map(len, cells)) + 2 for cells in zip(headings, *rows, strict=True)]
    return max(sum(1 for total in accumulate(widths) if total - 2 <= width), 2)


def _write(value: float, write: Callable[[float], str]) -> str:
    return ABSENT if math.isnan(value) else write(value)


def list_states(diagnosis: Diagnosis, tables: Tables) -> dict[str, str]:
    """Say of each rank, by its label, what it is found to be."""
    told = find_table(tables, LEDGER_RANKS)
    if told is None:
        return {}
    several = len(set(told["engine"])) > 1
    states: dict[str, str] = {}
    for engine, rank, share in zip(told["engine"], told["rank"], told["idle_share_ratio"], strict=True):
        causes = [item.cause for item in diagnosis.findings if item.engine == engine and int(rank) in item.ranks]
        idle = ["idle"] if share >= IDLE_SHARE else []
        states[f"{engine} {rank}" if several else str(rank)] = ", ".join(causes or idle)
    return states


def describe_columns(meanings: Mapping[str, str]) -> dict[str, str]:
    """Give the meanings of columns of the table to their headings."""
    return {heading: meanings[name] for name, heading, _ in _SHOWN}
