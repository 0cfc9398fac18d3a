"""What the commands that ask engines share: targets, and how to be let in without a secret on the command line."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.cli.base import FILE
from dprankdiag.errors import UsageError

if TYPE_CHECKING:
    from dprankdiag.collectors.http import Access

Command = TypeVar("Command", bound=Callable[..., Any])

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
"""What a header may be called. Source: RFC 9110, section 5.1."""

_OPTIONS = (
    click.option("--token-env", metavar="NAME", help="Environment variable that holds the API key."),
    click.option("--token-file", type=FILE, metavar="FILE", help="File that holds the API key."),
    click.option("--token-header", metavar="NAME", default="Authorization", help="Header that carries it."),
    click.option("--plain-token", is_flag=True, help="Send it to other hosts without TLS, too."),
    click.option("--ca-file", type=FILE, metavar="FILE", help="Certificate authorities to trust (PEM)."),
)
TIMEOUT_S = 5.0


def target_options(command: Command) -> Command:
    """Add the targets and the options that say how to be let in."""
    command = access_options()(command)
    return click.argument("targets", nargs=-1, required=True, metavar="TARGET...")(command)


def access_options(*, timeout_s: float = TIMEOUT_S) -> Callable[[Command], Command]:
    """Give what adds the options that say how to be let in.

    Args:
        timeout_s: longest wait for an answer unless the user says otherwise.
    """
    words = f"Longest wait for an answer [{timeout_s:g}s]."
    timeout = click.option("--timeout", "timeout_s", type=Seconds(), default=timeout_s, help=words)

    def add(command: Command) -> Command:
        for option in reversed((*_OPTIONS, timeout)):
            command = option(command)
        return command

    return add


def read_access(given: Mapping[str, Any]) -> Access:
    """Read the token from where the options say.

    Raises:
        UsageError: two sources of a token, a variable or file that holds none, or no name of a header.
    """
    from dprankdiag.collectors.http import Access, read_secret

    variable = check_variable_name("--token-env", given["token_env"])
    if _HEADER_NAME.fullmatch(given["token_header"]) is None:
        raise UsageError("--token-header takes the name of a header, such as X-Api-Key")
    if given["ca_file"] is not None and not given["ca_file"].is_file():
        raise UsageError("no such file", where=str(given["ca_file"]))
    timeout_s: float = given["timeout_s"]
    return Access(
        secret=read_secret(env=variable, file=given["token_file"], header=given["token_header"]),
        ca_file=given["ca_file"],
        connect_s=min(timeout_s, Access().connect_s),
        reply_s=timeout_s,
        plain_secret=given["plain_token"],
    )


def check_variable_name(option: str, variable: str | None) -> str | None:
    """Check that an option names an environment variable.

    Raises:
        UsageError: it does not.
    """
    if variable is not None and _ENVIRONMENT_NAME.fullmatch(variable) is None:
        # What was given may be the token itself: it is not repeated.
        raise UsageError(f"{option} takes the name of an environment variable, not the token")
    return variable


def choose_window(window_s: float | None, interval_s: float) -> float:
    """Choose the time that is judged together, s.

    Raises:
        UsageError: it would never hold two answers.
    """
    from dprankdiag.pipelines.tracking import WINDOW_S

    if window_s is not None and window_s < interval_s:
        mend = "give it three intervals or more, or leave it out"
        raise UsageError("shorter than --interval, so that nothing is seen to change", where="--window", mend=mend)
    return window_s or max(WINDOW_S, 3 * interval_s)


def check_once(targets: Sequence[str]) -> tuple[str, ...]:
    """Check that no target is given twice.

    Raises:
        UsageError: one is.
    """
    for target in targets:
        if targets.count(target) > 1:
            from dprankdiag.collectors.http import hide_credentials

            raise UsageError("named twice as target", where=hide_credentials(target))
    return tuple(targets)
