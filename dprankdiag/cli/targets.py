"""What the commands that ask engines share: targets, and how to be let in without a secret on the command line."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click

from dprankdiag.cli.amounts import Seconds
from dprankdiag.errors import UsageError

FILE = click.Path(path_type=Path, readable=False)
Command = TypeVar("Command", bound=Callable[..., Any])

_ENVIRONMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\x20-\x7e\t]*)")
"""A header's name and value. Source: RFC 9110, sections 5.1 and 5.5."""

SCHEMES = ("http", "https", "prometheus+http", "prometheus+https", "zmq+tcp", "zmq+ipc")
LOCAL = "shm:"
"""The load snapshot of an engine on this host."""


@dataclass(frozen=True, slots=True)
class Access:
    """How to be let in by a target.

    Attributes:
        headers: sent with each request; may hold secrets and are never shown.
        ca_file: authorities to trust in place of the system's.
        insecure: do not check certificates.
        timeout_s: longest wait for an answer.
    """

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    ca_file: Path | None = None
    insecure: bool = False
    timeout_s: float = 5.0


_OPTIONS = (
    click.option("--token-env", metavar="NAME", help="Environment variable that holds the API key (bearer token)."),
    click.option("--token-file", type=FILE, metavar="FILE", help="File whose first line is the API key."),
    click.option("--header-file", type=FILE, metavar="FILE", help="File of headers to send, 'Name: value' a line."),
    click.option("--ca-file", type=FILE, metavar="FILE", help="Certificate authorities to trust (PEM)."),
    click.option("--insecure", is_flag=True, help="Do not check the server's certificate."),
    click.option("--timeout", "timeout_s", type=Seconds(), default=5.0, help="Longest wait for an answer [5s]."),
)


def target_options(command: Command) -> Command:
    """Add the targets and the options that say how to be let in."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return click.argument("targets", nargs=-1, required=True, metavar="TARGET...")(command)


def read_access(given: Mapping[str, Any]) -> Access:
    """Read tokens and headers from where the options say.

    Raises:
        UsageError: two sources of a token, a variable or file that is not there, or a line that is no header.
    """
    if given["token_env"] is not None and given["token_file"] is not None:
        raise UsageError("--token-env and --token-file exclude each other")
    headers = _read_headers(given["header_file"]) if given["header_file"] is not None else {}
    token = _read_token(given["token_env"], given["token_file"])
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    ca_file = given["ca_file"]
    if ca_file is not None and not ca_file.is_file():
        raise UsageError("no such file", where=str(ca_file))
    return Access(headers, ca_file, given["insecure"], given["timeout_s"])


def _read_token(variable: str | None, path: Path | None) -> str | None:
    if variable is not None:
        if _ENVIRONMENT_NAME.fullmatch(variable) is None:
            # What was given may be the token itself: it is not repeated.
            raise UsageError("--token-env takes the name of an environment variable, not the token")
        return _check_token(os.environ.get(variable, ""), f"environment variable {variable}")
    if path is not None:
        return _check_token(_read_text(path).partition("\n")[0], str(path))
    return None


def _check_token(text: str, where: str) -> str:
    token = text.strip()
    if not token:
        raise UsageError("no token in it", where=where, mend="set it first")
    if not (token.isascii() and token.isprintable()):
        raise UsageError("the token has characters that no header can carry", where=where)
    return token


def _read_headers(path: Path) -> dict[str, str]:
    headers = {}
    for number, line in enumerate(_read_text(path).splitlines(), 1):
        if not line.strip():
            continue
        found = _HEADER.fullmatch(line.strip())
        if found is None:
            raise UsageError("is no header, expected 'Name: value'", where=f"{path}, line {number}")
        headers[found[1]] = found[2].strip()
    return headers


def _read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise UsageError(f"cannot be read ({reason})", where=str(path)) from None


def check_targets(targets: Sequence[str], schemes: Sequence[str] = SCHEMES) -> tuple[str, ...]:
    """Check that each target is one that can be asked, once.

    Raises:
        UsageError: no address of a known kind, one that carries a password, or one given twice.
    """
    seen: list[str] = []
    for target in targets:
        _check_target(target, schemes)
        if target in seen:
            raise UsageError("named twice as target", where=target)
        seen.append(target)
    return tuple(seen)


def _check_target(target: str, schemes: Sequence[str]) -> None:
    if target.startswith(LOCAL):
        return
    try:
        parts = urlsplit(target)
        host, has_user, _ = parts.hostname, "@" in parts.netloc, parts.port
    except ValueError:
        raise UsageError("no usable address", where="TARGET", mend="such as http://127.0.0.1:30000") from None
    if has_user:
        mend = "give a token with --token-env or --token-file, other headers with --header-file"
        raise UsageError("a target must not carry a user name or password", where=str(host), mend=mend)
    if "://" not in target:
        raise UsageError("no address", where=target, mend=f"did you mean http://{target}?")
    if parts.scheme not in schemes:
        raise UsageError(f"no target of kind '{parts.scheme}'", where=target, mend=f"there are {', '.join(schemes)}")
    if not host and parts.scheme != "zmq+ipc":
        raise UsageError("an address without a host", where=target, mend="such as http://127.0.0.1:30000")
