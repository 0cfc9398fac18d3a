"""Turn answers into the rows of a recording and back, leaving out what must not be stored."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import numpy as np

from dprankdiag.model.ledgers import Fact, FloatArray

_HARMLESS_QUERY = ("format", "include", "dp_rank", "config_format", "query", "time")
"""What a stored address may ask for; every other part of a query could be a secret."""

_USER_IN_URL = re.compile(r"(?<=://)[^/\s@]*@")
_QUERY_IN_URL = re.compile(r"(://[^\s?#]*)[?#]\S*?(?=[:;,.)]*(?:\s|$))")
_SECRET_NAME = re.compile(
    r"api_?key|passw|secret|credential|authori[sz]ation|bearer|private_?key|keyfile|launch_command|(^|_)token$",
    re.IGNORECASE,
)
"""Names of facts that may hold a secret; a launch command may carry an API key among its arguments."""

_KINDS: dict[type, str] = {bool: "truth", int: "integer", float: "number", str: "text"}
_MAX_INTEGER = 2**63 - 1

FactRow = tuple[str, Any, str]


def clean_address(address: str) -> str:
    """Leave out of a URL who asks and what may be secret in its query; a path stays as it is."""
    if "://" not in address:
        return address
    try:
        parts = urlsplit(_USER_IN_URL.sub("", address))
    except ValueError:
        return clean_text(address).split("?", 1)[0]
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name in _HARMLESS_QUERY]
    return urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(kept, safe=","), ""))


def clean_text(text: str) -> str:
    """Leave user names, passwords and queries out of the URLs in a text."""
    return _QUERY_IN_URL.sub(r"\1", _USER_IN_URL.sub("", text))


def make_fact_rows(facts: Mapping[str, Fact]) -> tuple[FactRow, ...]:
    """Make the rows of facts in order of their names; what may be secret is left out."""
    kept = sorted((name, value) for name, value in facts.items() if not _SECRET_NAME.search(name))
    return tuple((name, *_store_fact(value)) for name, value in kept)


def _store_fact(value: Fact) -> tuple[Any, str]:
    kind = _KINDS[type(value)]
    if isinstance(value, str):
        return clean_text(value), kind
    if isinstance(value, int) and abs(value) > _MAX_INTEGER:
        return str(value), kind
    return value, kind


def read_fact(value: Any, kind: str) -> Fact:
    """Read a fact back."""
    if kind == "number":
        return math.nan if value is None else float(value)
    if kind == "truth":
        return bool(value)
    return int(value) if kind == "integer" else str(value)


def make_load_rows(
    answer: int, ranks: Sequence[int], values: Mapping[str, FloatArray]
) -> Iterable[tuple[int | float | None, ...]]:
    """Make one row a rank: answer, rank, the fields in the order of `values`; not a number is NULL."""
    columns = [_list_numbers(array) for array in values.values()]
    for place, rank in enumerate(ranks):
        yield (answer, rank, *(column[place] for column in columns))


def _list_numbers(array: FloatArray) -> list[float | None]:
    return [None if math.isnan(value) else value for value in np.asarray(array, np.float64).tolist()]


def write_numbers(array: FloatArray) -> str:
    """Write numbers as a JSON list; not a number is null, without end is a number too large."""
    shown = (
        "null" if math.isnan(value) else repr(value).replace("inf", "9e999") for value in np.asarray(array).tolist()
    )
    return f"[{','.join(shown)}]"


def read_numbers(text: str) -> FloatArray:
    """Read numbers back."""
    return np.array([math.nan if value is None else value for value in json.loads(text)], np.float64)
