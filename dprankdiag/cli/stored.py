"""What the commands that read a Prometheus share: which span of it, and which of its series."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.collectors.prometheus_select import Matcher
    from dprankdiag.pipelines.stored_span import StoredQuestion

Command = TypeVar("Command", bound=Callable[..., Any])

SERVER = "prometheus+"
SINCE_S = 3600.0
_STAMP = re.compile(r"\d{9,}(?:\.\d+)?")


def is_server(target: str) -> bool:
    """Tell whether a target is a Prometheus server."""
    return target.startswith(SERVER)


class Moment(click.ParamType[float]):
    """A moment such as 2026-11-30T10:00:00Z or 1780000000, as UTC epoch seconds."""

    name = "MOMENT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Read it; a moment without a time zone is UTC."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        if _STAMP.fullmatch(text):
            return float(text)
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            self.fail(f"'{value}' is no moment, expected such as 2026-11-30T10:00:00Z or 1780000000", param, ctx)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()


class SecondsOrMoment(click.ParamType[Any]):
    """A time before the end, or the moment at which a span begins."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Read it as a number of seconds before the end, or as `datetime` of UTC."""
        if isinstance(value, (float, datetime)):
            return value
        if "-" in str(value) or _STAMP.fullmatch(str(value).strip()):
            return datetime.fromtimestamp(Moment().convert(value, param, ctx), UTC)
        return Seconds().convert(value, param, ctx)


class FileOrServer(click.Path):
    """A file, or the address of a Prometheus server."""

    name = "PATH"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Leave an address as it is: a path would lose one of its slashes."""
        if isinstance(value, str) and is_server(value):
            return value
        return super().convert(value, param, ctx)


_SELECT = click.option(
    "--select", metavar="MATCHERS", help='Of a Prometheus, only series with these labels, such as namespace="x".'
)

_SPAN = (
    click.option("--since", type=SecondsOrMoment(), help="Of a Prometheus: how long before the end, or a moment [1h]."),
    click.option("--until", type=Moment(), help="Its end, such as 2026-11-30T10:00:00Z [now]."),
    click.option("--step", "step_s", type=Seconds(), help="Time between moments [as often as engines are scraped]."),
)


def select_option(command: Command) -> Command:
    """Add the option that chooses series by their labels."""
    return _SELECT(command)


def span_options(command: Command) -> Command:
    """Add the options that choose a span and series."""
    for option in reversed((*_SPAN, _SELECT)):
        command = option(command)
    return command


def read_selection(given: Mapping[str, Any], targets: Sequence[str]) -> tuple[Matcher, ...]:
    """Read the matchers of `--select`.

    Raises:
        UsageError: they are none, or no target is a Prometheus server.
    """
    from dprankdiag.collectors.prometheus_select import read_matchers

    if given["select"] is None:
        return ()
    if not any(map(is_server, targets)):
        raise UsageError("chooses series of a Prometheus, and none is given", where="--select", mend=_NAME_ONE)
    return read_matchers(given["select"])


def read_question(
    given: Mapping[str, Any], servers: Sequence[str], now: Callable[[], float] = time.time
) -> StoredQuestion | None:
    """Read which span of which servers is meant; None where there is no server.

    Raises:
        UsageError: the span is empty, or options are given that need a server.
    """
    for name in ("since", "until", "step_s"):
        if given[name] is not None and not servers:
            option = f"--{name.removesuffix('_s')}"
            raise UsageError("chooses a span of a Prometheus, and none is given", where=option, mend=_NAME_ONE)
    matchers = read_selection(given, servers)
    if not servers:
        return None
    from dprankdiag.pipelines.stored import Span
    from dprankdiag.pipelines.stored_span import StoredQuestion

    since = given["since"]
    until_s: float | None = given["until"]
    since_s = SINCE_S if since is None else since
    if isinstance(since, datetime):
        since_s = (now() if until_s is None else until_s) - since.timestamp()
    if not (since_s > 0 and math.isfinite(since_s)):
        raise UsageError("the span ends before it begins", where="--since", mend="give a moment before --until")
    if given["step_s"] is not None and given["step_s"] >= since_s:
        raise UsageError("no shorter than the span", where="--step", mend="leave it out")
    return StoredQuestion(tuple(servers), Span(since_s, until_s, given["step_s"]), matchers)


_NAME_ONE = "name one: prometheus+http://HOST:9090"
