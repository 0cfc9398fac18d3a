"""Text exposition, as a Python metrics client writes it."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

Labels = Mapping[str, str]


class Deployed(Protocol):
    """What the writers of pages need to know of a deployment; as `LedgerWorld` says."""

    @property
    def version(self) -> str:
        """Tell the release."""

    @property
    def role(self) -> str:
        """Tell what it computes: unified, prefill or decode."""

    @property
    def dp_attention(self) -> bool:
        """Tell whether SGLang's switch that counts steps, pairs and waits is on."""

    @property
    def attention_tp(self) -> int:
        """Count SGLang's schedulers of one DP rank."""

    @property
    def expert_counts(self) -> bool:
        """Tell whether SGLang tells of tokens by layer and GPU."""

    @property
    def running_limit(self) -> int:
        """Tell how many requests of a rank run at once at most."""

    @property
    def accept_tokens(self) -> float:
        """Tell the tokens a step and request; above 1 with speculative decoding."""

    @property
    def lockstep(self) -> bool:
        """Tell whether all ranks step together."""

    @property
    def api_servers(self) -> int:
        """Count vLLM's front ends."""


@dataclass(slots=True)
class Page:
    """A page that grows family by family.

    Attributes:
        help_lines: each family has a line of help before its type.
    """

    help_lines: bool = True
    _lines: list[str] = field(default_factory=list)

    def family(self, name: str, kind: str, samples: Iterable[tuple[Labels, float]]) -> None:
        """Write a family of single values; without samples it is left out. NaN is written as such."""
        lines = [_write(name, labels, value) for labels, value in samples]
        if lines:
            self._head(name, kind)
            self._lines += lines

    def histogram(
        self, name: str, edges: Sequence[float], samples: Iterable[tuple[Labels, Sequence[float], float]]
    ) -> None:
        """Write a histogram: labels, counts by bucket (one more than edges, not cumulative), and the sum."""
        rows = list(samples)
        if not rows:
            return
        self._head(name, "histogram")
        for labels, counts, total in rows:
            self._lines.append(_write(f"{name}_sum", labels, total))
            running = 0.0
            for edge, count in zip([*edges, math.inf], counts, strict=True):
                running += float(count)
                bound = "+Inf" if math.isinf(edge) else repr(float(edge))
                self._lines.append(_write(f"{name}_bucket", {**labels, "le": bound}, running))
            self._lines.append(_write(f"{name}_count", labels, running))

    def summed(self, name: str, edges: Sequence[float], samples: Iterable[tuple[Labels, float, float]]) -> None:
        """Write a histogram of labels, count and sum whose observations all lie about their mean."""
        rows = []
        for labels, count, total in samples:
            buckets = [0.0] * (len(edges) + 1)
            buckets[bisect_left(edges, total / count) if count else 0] = count
            rows.append((labels, buckets, total))
        self.histogram(name, edges, rows)

    def encode(self) -> bytes:
        """Give the page's bytes."""
        return ("\n".join(self._lines) + "\n").encode()

    def _head(self, name: str, kind: str) -> None:
        if self.help_lines:
            self._lines.append(f"# HELP {name} {name.partition(':')[2].replace('_', ' ')}.")
        self._lines.append(f"# TYPE {name} {kind}")


def _write(name: str, labels: Labels, value: float) -> str:
    inside = ",".join(f'{key}="{labels[key]}"' for key in sorted(labels))
    shown = f"{{{inside}}}" if inside else ""
    return f"{name}{shown} {_spell(float(value))}"


def _spell(value: float) -> str:
    """Spell a number as the client does: from a million on with an exponent.

    Source: prometheus_client 0.22, text exposition.
    """
    if math.isnan(value):
        return "NaN"
    text = repr(value)
    point = text.find(".")
    if value <= 0 or point <= 6:
        return text
    digits = (text[:point] + text[point + 1 :]).rstrip("0")
    return f"{digits[0]}{'.' * (len(digits) > 1)}{digits[1:]}e+{point - 1:02d}"
