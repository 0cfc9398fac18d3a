"""Choose series in a Prometheus: label matchers are read strictly and written anew, never pasted into a question."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dprankdiag.errors import UsageError

OPTION = "--select"
_MEND = """write them as in PromQL: --select 'namespace="x",pod=~"engine-.+"'"""

_ONE = re.compile(
    r"\s*(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*(?P<operator>=~|!~|!=|=)\s*"
    r"(?:\"(?P<double>(?:[^\"\\\n]|\\.)*)\"|'(?P<single>(?:[^'\\\n]|\\.)*)')\s*(?:,|\Z)"
)
_ESCAPE = re.compile(r"\\(.)")
_MEANT = {"n": "\n", "t": "\t", "r": "\r", "\\": "\\", '"': '"', "'": "'"}


@dataclass(frozen=True, slots=True)
class Matcher:
    """A condition on a label, such as `pod=~"engine-.+"`."""

    label: str
    operator: str
    value: str

    def write(self) -> str:
        """Write it as PromQL reads it, whatever the value holds."""
        text = self.value.replace("\\", r"\\").replace('"', r"\"")
        for mark, escape in (("\n", r"\n"), ("\t", r"\t"), ("\r", r"\r")):
            text = text.replace(mark, escape)
        return f'{self.label}{self.operator}"{text}"'


def read_matchers(text: str) -> tuple[Matcher, ...]:
    """Read label matchers as a user writes them, with or without braces around them.

    Raises:
        UsageError: it is anything else, or chooses the name of a series, which is not the user's to choose.
    """
    inner = text.strip()
    if inner.startswith("{") and inner.endswith("}"):
        inner = inner[1:-1].strip()
    found: list[Matcher] = []
    place = 0
    while place < len(inner):
        one = _ONE.match(inner, place)
        if one is None:
            raise UsageError(f"expected label matchers, got '{inner[place:].strip()}'", where=OPTION, mend=_MEND)
        raw = one["double"] if one["double"] is not None else one["single"]
        found.append(Matcher(one["name"], one["operator"], _read_escapes(raw)))
        place = one.end()
    if not found:
        raise UsageError("expected label matchers, got nothing", where=OPTION, mend=_MEND)
    if any(matcher.label == "__name__" for matcher in found):
        mend = "choose by the labels of targets, such as namespace, job or pod"
        raise UsageError("__name__ cannot be chosen: it is known which series are read", where=OPTION, mend=mend)
    return tuple(found)


def _read_escapes(text: str) -> str:
    def read(found: re.Match[str]) -> str:
        if found[1] not in _MEANT:
            mend = "write a backslash of a regular expression twice, as PromQL does"
            raise UsageError(f"unknown escape '{found[0]}'", where=OPTION, mend=mend)
        return _MEANT[found[1]]

    return _ESCAPE.sub(read, text)


def write_selector(names: str, matchers: tuple[Matcher, ...] = ()) -> str:
    """Write a selector of series whose name matches a regular expression."""
    return "{" + ",".join([f'__name__=~"{names}"', *(matcher.write() for matcher in matchers)]) + "}"
