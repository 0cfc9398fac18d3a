"""Read from its name what a communication kernel or range does."""

from __future__ import annotations

from functools import lru_cache

from dprankdiag.catalog.rules import Rule, find_rule, make_rule, read_catalog
from dprankdiag.errors import TableError

OPERATIONS: tuple[str, ...] = (
    "all_gather",
    "reduce_scatter",
    "all_reduce",
    "broadcast",
    "reduce",
    "send_recv",
    "all_to_all",
    "dispatch",
    "combine",
    "notify",
    "barrier",
    "generic",
)
"""What communication does; the operation of everything else is the empty text."""


def name_operation(text: str) -> str:
    """Name the operation a collective's name speaks of, "generic" if it speaks of none."""
    rule = find_rule(_load_operations(), text)
    return rule.values["operation"] if rule else "generic"


@lru_cache(maxsize=1)
def _load_operations() -> tuple[Rule, ...]:
    try:
        return tuple(make_rule(row, ("operation",)) for row in read_catalog("operations.toml")["rule"])
    except (KeyError, ValueError) as error:
        raise TableError(str(error), where="catalogue operations.toml") from error
