"""Say what exactly to set or run, for the engine and release that the input shows."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dprankdiag.catalog.rules import read_catalog
from dprankdiag.errors import TableError
from dprankdiag.model.serving import UNKNOWN_SERVING, Serving

ENGINES = {"sglang": "SGLang", "vllm": "vLLM"}
"""How engines are spelled for people, in the order in which both are told."""


@dataclass(frozen=True, slots=True)
class Command:
    """One line to set or run.

    Attributes:
        engine: whose it is; empty where it is none's.
        line: flags, an environment variable, a field of a request, or a program with its arguments.
        since: first release that is known to have it; None if every release does.
        until: first release that no longer has it; None if all later ones do.
    """

    engine: str
    line: str
    source: str
    since: str | None = None
    until: str | None = None

    def fits(self, serving: Serving) -> bool:
        """Tell whether an engine of that release has it; what is not known of it stands in no command's way."""
        if not self.engine:
            return True
        if serving.engine is not None and serving.engine != self.engine:
            return False
        if serving.release is None or serving.engine is None:
            return True
        release = _order(serving.release)
        return not (self.since and release < _order(self.since)) and not (self.until and release >= _order(self.until))

    def tell(self, serving: Serving) -> str:
        """Write it with whose it is and which releases have it, as far as the input leaves that open."""
        known = self.engine == "" or serving.release is not None
        span = "" if known else _describe_releases(self.since, self.until)
        if self.engine == "" or serving.engine is not None:
            return f"{self.line} ({span})" if span else self.line
        return f"{ENGINES[self.engine]}{f' ({span})' if span else ''}: {self.line}"


def _order(release: str) -> tuple[int, ...]:
    """Make the numbers of a release comparable: 0.5.12.post1 follows 0.5.9."""
    leading = re.match(r"\d+(?:\.\d+)*", release)
    return tuple(int(part) for part in leading[0].split(".")) if leading else ()


def _describe_releases(since: str | None, until: str | None) -> str:
    if until:
        return f"{since} until before {until}" if since else f"before {until}"
    return f"{since} or later" if since else ""


def choose_command(commands: Sequence[Command], serving: Serving) -> str | None:
    """Write what to do on an engine, or on either where it is not known; None if there is nothing for it.

    Of several releases' spellings of one engine of unknown release, the newest is told.
    """
    return "; ".join(tell_commands(commands, serving)) or None


def tell_commands(commands: Sequence[Command], serving: Serving) -> tuple[str, ...]:
    """Write each command that an engine has; as `choose_command`, which writes them in one line."""
    fit = [command for command in commands if command.fits(serving)]
    if serving.release is None:
        fit = list(_keep_newest(fit))
    return tuple(command.tell(serving) for command in fit)


def tell_all(keys: Iterable[str]) -> dict[str, tuple[str, ...]]:
    """Write what to set or run for remedies, by their keys, on whichever engine."""
    known = load_commands()
    return {key: tell_commands(known.get(key, ()), UNKNOWN_SERVING) for key in keys}


def _keep_newest(commands: Sequence[Command]) -> Iterable[Command]:
    """Leave out what only earlier releases have, where later ones have another spelling."""
    for command in commands:
        newer = [other for other in commands if other.engine == command.engine and other.until is None]
        if command.until is None or not newer:
            yield command


def can_try(commands: Sequence[Command], serving: Serving) -> bool:
    """Tell whether an engine can do it: it has a command for it, or it needs none."""
    return not commands or any(command.fits(serving) for command in commands)


def read_commands(rows: Sequence[Mapping[str, Any]]) -> tuple[Command, ...]:
    """Make commands of rows of the catalogue.

    Raises:
        ValueError, TypeError: a row names no known engine, or has other keys.
    """
    commands = tuple(Command(**row) for row in rows)
    for command in commands:
        if command.engine and command.engine not in ENGINES:
            raise ValueError(f"{command.line} is of the engine {command.engine}")
    return commands


def load_commands() -> Mapping[str, tuple[Command, ...]]:
    """Load the commands of all remedies that have some, by the remedy's key."""
    return _load_shipped()


@lru_cache(maxsize=1)
def _load_shipped() -> Mapping[str, tuple[Command, ...]]:
    rows = read_catalog("commands.toml")
    try:
        return {key: read_commands(row["commands"]) for key, row in rows.items()}
    except (KeyError, TypeError, ValueError) as error:
        raise TableError(str(error), where="catalogue commands.toml") from error
