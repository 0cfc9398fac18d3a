"""Tell which input can show which cause, and how to get what is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Literal

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError

Answer = Literal["can", "needs", "cannot"]

_WHERE = "catalogue identifiability.toml"


@dataclass(frozen=True, slots=True)
class Ability:
    """Whether an input can show a cause.

    Attributes:
        answer: "can", "needs" (with more of the same input), or "cannot".
        text: the whole answer, quotable: "can", "cannot", or "needs ...".
        get_it_with: the command that gives what is missing; None if the input can.
    """

    answer: Answer
    text: str
    get_it_with: str | None


@dataclass(frozen=True, slots=True)
class InputKind:
    """A kind of input, in words, and the command that makes one."""

    name: str
    title: str
    get_it_with: str


def load_inputs() -> dict[str, InputKind]:
    """Load the kinds of input by name, in the order of the catalogue's columns."""
    return dict(_load_shipped()[0])


def load_identifiability() -> dict[str, dict[str, Ability]]:
    """Load what each input can show, as cause → input → ability."""
    return {cause: dict(abilities) for cause, abilities in _load_shipped()[1].items()}


@lru_cache(maxsize=1)
def _load_shipped() -> tuple[dict[str, InputKind], dict[str, dict[str, Ability]]]:
    tables = read_catalog("identifiability.toml")
    try:
        inputs = {name: InputKind(name, **row) for name, row in tables["inputs"].items()}
        return inputs, {cause: _make_row(cells, inputs) for cause, cells in tables["causes"].items()}
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where=_WHERE) from error


def _make_row(cells: Mapping[str, Any], inputs: Mapping[str, InputKind]) -> dict[str, Ability]:
    if set(cells) != set(inputs):
        raise ValueError(f"inputs {sorted(set(cells) ^ set(inputs))} missing or unknown")
    return {name: _make_ability(cells[name], inputs) for name in inputs}


def _make_ability(cell: Any, inputs: Mapping[str, InputKind]) -> Ability:
    if cell == "can":
        return Ability("can", "can", None)
    text = cell["answer"]
    command = cell.get("get_it_with") or inputs[cell["get"]].get_it_with
    if text == "cannot":
        return Ability("cannot", text, command)
    if not text.startswith("needs "):
        raise ValueError(f"answer {text!r} is none of can, cannot, needs ...")
    return Ability("needs", text, command)
