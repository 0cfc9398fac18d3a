"""Say which cheap experiment tells one cause from another, and what each outcome would mean."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dprankdiag.catalog.commands import Command, choose_command, read_commands
from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError
from dprankdiag.model.diagnosis import Experiment, Outcome
from dprankdiag.model.serving import Serving


@dataclass(frozen=True, slots=True)
class Control:
    """A row of the catalogue of experiments.

    Attributes:
        causes: findings that carry it.
        outcomes: at least two, or it would tell nothing apart.
    """

    key: str
    causes: tuple[str, ...]
    text: str
    commands: tuple[Command, ...]
    outcomes: tuple[Outcome, ...]


def list_experiments(cause: str, serving: Serving) -> tuple[Experiment, ...]:
    """List the experiments for a cause that the engine can run."""
    return tuple(
        Experiment(control.key, control.text, command, control.outcomes)
        for control in load_controls().values()
        if cause in control.causes
        for command in [choose_command(control.commands, serving)]
        if command is not None or not control.commands
    )


def load_controls() -> Mapping[str, Control]:
    """Load all experiments by key, in the order of the catalogue."""
    return _load_shipped()


@lru_cache(maxsize=1)
def _load_shipped() -> Mapping[str, Control]:
    try:
        return {key: _make_control(key, row) for key, row in read_catalog("experiments.toml").items()}
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where="catalogue experiments.toml") from error


def _make_control(key: str, row: Mapping[str, Any]) -> Control:
    outcomes = tuple(
        Outcome(seen=item["seen"], means=item["means"], cause=item["cause"] or None) for item in row["outcomes"]
    )
    if len({item.cause for item in outcomes}) < 2:
        raise ValueError(f"the experiment {key} tells nothing apart")
    return Control(key, tuple(row["causes"]), row["text"], read_commands(row["commands"]), outcomes)
