"""What would be served otherwise: the run as it is, and options beside it, each with its gain and what to set.

Ratios are 0 to 1, times are ns, absent is None. `dprankdiag whatif --format json` prints these values as they are here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from dprankdiag.model.diagnosis import Interval

SCHEMA_VERSION = 1
"""Raised when a published field changes its meaning; new fields leave it alone."""

OptionKind = Literal["policy", "load", "fault", "layout", "experts"]
"""policy: another router; load: the work spread evenly; fault: a rank made well; layout: other ranks or experts' places
by configuration; experts: copies and places by recorded counts."""

Basis = Literal["replayed", "drawn", "bound"]
"""replayed: what was recorded, served or replayed again; drawn: requests drawn from histograms, then served; bound:
no option of its kind can gain more."""

GainOf = Literal["request_time", "step_time"]
"""What a gain is a share of: the time from arrival to last token, summed over the same requests; or the wall time of
the measured steps."""

Verdict = Literal["better", "tied", "none_better", "cannot_tell"]
"""better: one option gains most; tied: several do, within their intervals; none_better: none gains beyond its
interval; cannot_tell: no gain could be given."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number and the interval it lies in at `WhatIf.interval_level`; both None where it cannot be told."""

    value: float | None = None
    interval: Interval | None = None


UNKNOWN = Figure()


@dataclass(frozen=True, slots=True)
class Service:
    """What one way to serve makes of the load.

    Attributes:
        imbalance_ratio: time that the busiest rank works before the gather over the mean of the ranks', over all
            steps; 1 is even.
        waiting_ratio: share of the ranks' time in steps that they wait for slower ones.
        step_p50_ns, step_p99_ns: from step to step.
        first_token_p50_ns, first_token_p99_ns: from arrival to the first token (TTFT).
        token_p50_ns, token_p99_ns: from one token to the next, the mean of each request (TPOT).
        generation_tok_s: tokens generated a second, from the first arrival to the last token.
        gpu_hours_day: GPU-hours a day in steps; of an option, what is left of the measured ones if the time it saves
            is given back as GPUs.
    """

    imbalance_ratio: Figure = UNKNOWN
    waiting_ratio: Figure = UNKNOWN
    step_p50_ns: Figure = UNKNOWN
    step_p99_ns: Figure = UNKNOWN
    first_token_p50_ns: Figure = UNKNOWN
    first_token_p99_ns: Figure = UNKNOWN
    token_p50_ns: Figure = UNKNOWN
    token_p99_ns: Figure = UNKNOWN
    generation_tok_s: Figure = UNKNOWN
    gpu_hours_day: Figure = UNKNOWN


@dataclass(frozen=True, slots=True)
class Option:
    """Another way to serve the same load.

    Attributes:
        key: unique in a result and stable between releases, such as `policy.total_tokens`.
        title: what it is, in words.
        command: the exact flag, environment variable or rule to set; None where nothing can be set.
        is_current: this is how it is served now; its gain is nothing.
        gain_ratio: predicted time saved over measured time, of what `gain_of` says; below 0 it would take longer.
        basis: what the prediction rests on.
        reasons: why numbers are absent; empty if none are.
        tied_with: keys of options whose gain cannot be told apart from this one's.
    """

    key: str
    kind: OptionKind
    title: str
    command: str | None
    gain_ratio: Figure
    gain_of: GainOf
    served: Service
    basis: Basis
    is_current: bool = False
    reasons: tuple[str, ...] = ()
    tied_with: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CostFit:
    """How well the time of steps follows from what was observed of their work.

    Attributes:
        observed: what the costs were fitted to, in words.
        samples: rows of the fit.
        held_out_error_ratio: median error on samples that the fit did not see, over their time; None if untested.
        terms: what a unit of work costs by the name of the term, such as `row_ns`; a term that the input cannot tell
            apart is absent.
    """

    observed: str
    samples: int
    held_out_error_ratio: float | None
    terms: dict[str, Figure]


@dataclass(frozen=True, slots=True)
class Origin:
    """What was read.

    Attributes:
        paths: as given, without credentials.
        kind: `recording`, `request-log`, `prometheus` or `bundle`.
        engine: `sglang` or `vllm`; None if unknown.
        policy: the key of the option in use; None if unknown.
        workers, ranks: engines, and DP ranks of each; None if unknown.
        gpus: of all ranks together; None if unknown.
        requests: how many were read or drawn.
        span_ns: from the first arrival, step or answer to the last.
    """

    paths: tuple[str, ...]
    kind: str
    engine: str | None = None
    version: str | None = None
    policy: str | None = None
    workers: int | None = None
    ranks: int | None = None
    gpus: int | None = None
    requests: int | None = None
    span_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Unpriced:
    """What could not be told, why, and what would tell it.

    Attributes:
        about: key of an option, or a kind of options, or the name of a field.
    """

    about: str
    reason: str
    lacked: tuple[str, ...] = ()
    get_it_with: str | None = None


@dataclass(frozen=True, slots=True)
class WhatIf:
    """All that is said about other ways to serve one load.

    Attributes:
        measured: the run as it was observed; what was not observed is absent.
        replayed: the run as it is, served again in the model, against which options are held; None where the
            measurement itself is.
        best: keys of the options that share the first place, best first; empty if none gains beyond its interval.
        options: by gain, the largest first; those without one last.
    """

    verdict: Verdict
    headline: str
    source: Origin
    measured: Service
    replayed: Service | None
    best: tuple[str, ...]
    options: tuple[Option, ...]
    fit: CostFit | None
    abstentions: tuple[Unpriced, ...]
    notes: tuple[str, ...]
    interval_level: float = 0.9
