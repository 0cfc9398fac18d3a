"""Ask what another policy would have made of the same requests: fit the costs, serve again, compare, say how sure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from dprankdiag.model.whatif import Basis, CostFit, Figure, Option, Origin, Service, Unpriced, Verdict, WhatIf
from dprankdiag.readers.request_log import REQUEST_LOG
from dprankdiag.simulate.base import FloatArray
from dprankdiag.simulate.cost_fit import Fit
from dprankdiag.simulate.costs import TERMS
from dprankdiag.simulate.policies import PolicyOption, Situation, list_policies
from dprankdiag.simulate.replay import Site, Traffic, serve_again
from dprankdiag.simulate.replay_figures import Drawn, Run, bound, compare_runs, measure_run
from dprankdiag.units import format_ratio

LEVEL = 0.9

MOST_ERROR_RATIO = 0.03
"""A model that misses held-out times, or the whole time, by more than this share gives no gains: a replay that errs
more gives no lost time either."""

LEAST_GAIN = 0.002
"""Gains closer to each other than this are alike: requests that come a moment later change more."""

WORTH_IT = 0.03
"""Gains from here on matter (DESIGN 3: warning): where one may be as large, nobody says that none is there."""

DAY_H = 24.0

_NOT_AS_RECORDED = (
    "the policy in use, served again, takes {astray} other time than what was recorded: it does not choose as this "
    "release is known to; policies that read what ranks publish of their loads are left out"
)

Note = Callable[[PolicyOption], None]
"""Told each policy before it is served."""


@dataclass(frozen=True, slots=True, eq=False)
class Case:
    """A load that was read, and all that is needed to serve it again.

    Attributes:
        observed: what costs were fitted to, in words.
        current: key of the policy in use, without `policy.`; None if unknown.
        gateway: the same in front of several engines, without `gateway.`.
        fit: None where too few times are told.
        measured: what was observed of the run itself.
        blur: share by which gains are uncertain beyond what the fit says (requests that were drawn, say).
        unpriced: what the input could not carry.
        doubt: why no gain can be given, whatever the fit says; None if nothing stands against it.
    """

    origin: Origin
    site: Site
    traffic: Traffic
    fit: Fit | None
    observed: str
    current: str | None
    measured: Service
    has_prefixes: bool
    basis: Basis = "replayed"
    blur: float = 0.0
    unpriced: tuple[Unpriced, ...] = ()
    notes: tuple[str, ...] = ()
    doubt: Unpriced | None = None
    gateway: str | None = None


@dataclass(frozen=True, slots=True, eq=False)
class _Priced:
    """An option with all draws of its gain; None where it has none."""

    option: Option
    gain: Drawn | None = None
    figures: dict[str, Drawn] = field(default_factory=dict)


def price_policies(case: Case, note: Note = lambda policy: None) -> WhatIf:
    """Serve the load under each policy and order them by what they save."""
    fit = case.fit
    if case.doubt is not None:
        return _abstain(case, case.doubt)
    if fit is None:
        lacked = Unpriced(
            "gain_ratio",
            "too few times of requests are told to fit what steps cost",
            ("ttft_s", "e2e_s"),
            "log the time to the first and to the last token of each request",
        )
        return _abstain(case, lacked)
    doubt = _find_doubt(fit)
    if doubt is not None:
        return _abstain(case, _explain_apart(doubt) if case.site.decoders else doubt)
    base = Run(case.site, fit.outcome, case.site.ranks)
    base_figures = measure_run(base, fit.terms, fit.draws)
    situation = _describe_situation(case, base_figures["step_p50_ns"].value)
    hours = None if case.origin.gpus is None else case.origin.gpus * DAY_H * base.busy_ratio
    priced = []
    policies = list_policies(situation)
    for policy in policies:
        note(policy)
        priced.append(_price(case, fit, base, policy, hours))
    astray = max((abs(each.gain.value) for each in priced if each.option.is_current and each.gain), default=0.0)
    if astray > MOST_ERROR_RATIO and case.origin.kind == REQUEST_LOG:
        # Costs and places are told by the log, so that it is the rule in use that is not known.
        unknown = {policy.key for policy in policies if policy.reads_loads}
        priced = [each for each in priced if each.option.is_current or each.option.key not in unknown]
        case = replace(case, notes=(*case.notes, _NOT_AS_RECORDED.format(astray=format_ratio(astray))))
    elif astray > MOST_ERROR_RATIO:
        reason = (
            f"the policy in use, served again, takes {format_ratio(astray)} other time than what was recorded: which "
            "request came when, or what steps cost, is not known well enough"
        )
        return _abstain(case, Unpriced("gain_ratio", reason, (), "give a log of requests together with a recording"))
    elif astray > 0:
        # What the model makes of the policy in use is known to be nothing; it errs as much elsewhere.
        priced = [_widen(each, astray) for each in priced]
    replayed = _make_service(base_figures, fit.miss_ratio, hours, None)
    priced = [_hold(each, replayed) if each.option.is_current else each for each in priced]
    return _rank(case, fit, replayed, priced)


def _describe_situation(case: Case, step_ns: float) -> Situation:
    outputs = [request.output_tokens for request in case.traffic.requests]
    return Situation(
        engine=case.site.engine,
        version=read_version(case.origin.version),
        workers=case.site.workers,
        lockstep=case.site.lockstep,
        role="prefill" if case.site.decoders else "unified",
        has_prefixes=case.has_prefixes,
        has_rooms=any(request.bootstrap_room is not None for request in case.traffic.requests),
        pins=case.traffic.pins > 0,
        step_ns=max(round(step_ns), 1),
        output_tokens=float(np.mean(outputs)),
        policy=case.current,
    )


def read_version(version: str | None) -> tuple[int, ...] | None:
    """Read the numbers of a release; None where there are none."""
    found = re.match(r"v?(\d+(?:\.\d+)*)", version or "")
    return tuple(int(part) for part in found[1].split(".")) if found else None


def _find_doubt(fit: Fit) -> Unpriced | None:
    """Tell why the model is not good enough to give gains; None if it is."""
    mend = "log more requests, or a time at which fewer things change"
    error = fit.held_out_error_ratio
    if error is not None and error > MOST_ERROR_RATIO:
        reason = f"fitted costs miss times that they were not fitted to by {format_ratio(error)}"
        return Unpriced("gain_ratio", reason, (), mend)
    if fit.miss_ratio > MOST_ERROR_RATIO:
        reason = f"served again as recorded, requests take {format_ratio(fit.miss_ratio)} other time than they did"
        return Unpriced("gain_ratio", reason, (), mend)
    return None


def _explain_apart(doubt: Unpriced) -> Unpriced:
    """Say what a log lacks of engines that hand requests on."""
    reason = (
        f"{doubt.reason}; where one engine computes prompts and another decodes, the time to the first token holds the "
        "prompt, the transfer of its KV and the wait for pages, and the log does not tell these apart"
    )
    mend = "ask of one side alone, or of traces of the engine that computes prompts: dprankdiag whatif TRACE"
    return replace(
        doubt, reason=reason, lacked=("when each prompt was computed", "when its KV had come"), get_it_with=mend
    )


def _price(case: Case, fit: Fit, base: Run, policy: PolicyOption, hours: float | None) -> _Priced:
    """Serve the load under a policy; of one that throws dice, several times."""
    runs = [
        Run(case.site, serve_again(case.site, case.traffic, one, fit.costs), case.site.ranks) for one in policy.choosers
    ]
    gains = [compare_runs(run, base, fit.terms, fit.draws) for run in runs]
    figures = [measure_run(run, fit.terms, fit.draws) for run in runs]
    gain = _pool(gains)
    mean = {name: _pool([each[name] for each in figures]) for name in figures[0]}
    blur = float(np.hypot(fit.miss_ratio, case.blur))
    option = Option(
        key=policy.key,
        kind="policy",
        title=policy.title,
        command=policy.command or None,
        gain_ratio=Figure(gain.value, bound(gain, LEVEL, blur, lambda value: 1.0)),
        gain_of="request_time",
        served=_make_service(mean, blur, hours, gain),
        basis=case.basis,
        is_current=policy.key in (f"policy.{case.current}", f"gateway.{case.gateway}"),
        reasons=tuple(f"{run.refused} requests fit no pool" for run in runs[:1] if run.refused),
    )
    return _Priced(option, gain, mean)


def _widen(priced: _Priced, astray: float) -> _Priced:
    """Widen the interval of a gain by what the model is known to miss."""
    figure = priced.option.gain_ratio
    if figure.value is None or figure.interval is None:
        return priced
    low, high = (
        figure.value + math.copysign(math.hypot(end - figure.value, astray), sign)
        for end, sign in zip(figure.interval, (-1.0, 1.0), strict=True)
    )
    return replace(priced, option=replace(priced.option, gain_ratio=Figure(figure.value, (low, high))))


def _hold(priced: _Priced, replayed: Service) -> _Priced:
    """Let the policy in use be what it is: it gains nothing, and is told apart from all that do."""
    option = replace(priced.option, gain_ratio=Figure(0.0, (0.0, 0.0)), served=replayed)
    return _Priced(option, None, {})


def _pool(drawn: Sequence[Drawn]) -> Drawn:
    """Take several runs as one: their mean, and the draws of all."""
    return Drawn(float(np.mean([each.value for each in drawn])), np.concatenate([each.draws for each in drawn]))


def _make_service(figures: dict[str, Drawn], blur: float, hours: float | None, gain: Drawn | None) -> Service:
    told = {
        name: Figure(drawn.value, bound(drawn, LEVEL, blur))
        for name, drawn in figures.items()
        if np.isfinite(drawn.value)
    }
    if hours is not None:
        left = Figure(hours, (hours, hours))
        if gain is not None:
            low, high = bound(gain, LEVEL, blur, lambda value: 1.0)
            left = Figure(hours * (1 - gain.value), (hours * (1 - high), hours * (1 - low)))
        told["gpu_hours_day"] = left
    return Service(**told)


def _rank(case: Case, fit: Fit, replayed: Service, priced: Sequence[_Priced]) -> WhatIf:
    ordered = sorted(priced, key=lambda each: each.option.key)
    resolution = max(LEAST_GAIN, fit.miss_ratio, case.blur)
    options = [replace(each.option, tied_with=tuple(_find_tied(each, ordered, resolution))) for each in ordered]
    result = WhatIf(
        "cannot_tell",
        "",
        case.origin,
        case.measured,
        replayed,
        (),
        tuple(options),
        _describe_fit(case, fit),
        case.unpriced,
        case.notes,
        LEVEL,
    )
    return conclude(result)


def conclude(result: WhatIf) -> WhatIf:
    """Order the options of a result by gain, and say which are best, as far as their intervals tell."""
    options = tuple(sorted(result.options, key=_by_gain))
    others = [option for option in options if not option.is_current]
    first = others[0] if others else None
    low, high = _find_ends(others)
    best: tuple[str, ...] = ()
    verdict: Verdict = "none_better"
    if first is None or low is None or high is None:
        verdict = "cannot_tell"
    elif (first.gain_ratio.value or 0.0) > LEAST_GAIN and low > 0:
        best = (first.key, *(key for key in (option.key for option in others) if key in first.tied_with))
        verdict = "tied" if len(best) > 1 else "better"
    elif high > WORTH_IT:
        verdict = "cannot_tell"
    told = replace(result, options=options, best=best, verdict=verdict)
    return replace(told, headline=write_headline(told))


def _find_ends(options: Sequence[Option]) -> tuple[float | None, float | None]:
    """Find the lower end of the first option's gain, and the upper end of any."""
    intervals = [option.gain_ratio.interval for option in options]
    first = intervals[0] if intervals else None
    highs = [interval[1] for interval in intervals if interval is not None]
    return None if first is None else first[0], max(highs, default=None)


def _by_gain(option: Option) -> tuple[bool, float, str]:
    value = option.gain_ratio.value
    return value is None, -(value or 0.0), option.key


def _find_tied(one: _Priced, all_priced: Sequence[_Priced], resolution: float) -> Iterator[str]:
    """Find the options whose gain is not told apart from one's."""
    if one.gain is None:
        return
    for other in all_priced:
        if other is one or other.gain is None:
            continue
        apart = one.gain.value - other.gain.value
        count = min(len(one.gain.draws), len(other.gain.draws))
        low, high = np.quantile(one.gain.draws[:count] - other.gain.draws[:count], [0.05, 0.95])
        if abs(apart) <= resolution or low <= 0 <= high:
            yield other.option.key


def _describe_fit(case: Case, fit: Fit) -> CostFit:
    low, high = np.quantile(fit.draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2], axis=0)
    terms = {
        name: Figure(float(value), (min(float(low[place]), float(value)), max(float(high[place]), float(value))))
        for place, (name, value) in enumerate(zip(TERMS, fit.terms, strict=True))
    }
    return CostFit(case.observed, fit.rows, fit.held_out_error_ratio, terms)


def _abstain(case: Case, why: Unpriced) -> WhatIf:
    fit = None if case.fit is None else _describe_fit(case, case.fit)
    return WhatIf(
        "cannot_tell",
        f"No gain can be given: {why.reason}",
        case.origin,
        case.measured,
        None,
        (),
        (),
        fit,
        (why, *case.unpriced),
        case.notes,
        LEVEL,
    )


def write_headline(result: WhatIf) -> str:
    """Say in one sentence what would help most."""
    if result.verdict == "cannot_tell":
        _, high = _find_ends([option for option in result.options if not option.is_current])
        most = "" if high is None else f", which may be anything up to {format_ratio(high)} of the requests' time"
        return f"What was observed does not tell what another policy would save{most}"
    if not result.best:
        return "No other policy would have served these requests in less time, beyond what the model is sure of"
    first = result.options[0]
    low, high = first.gain_ratio.interval or (0.0, 0.0)
    saved = (
        f"{format_ratio(first.gain_ratio.value)} of the requests' time ({format_ratio(low)} to {format_ratio(high)})"
    )
    if result.verdict == "tied":
        others = len(result.best) - 1
        which = "another policy" if others == 1 else f"{others} other policies"
        return f"{first.title.capitalize()} would save {saved}; {which} may do as well"
    return f"{first.title.capitalize()} would save {saved}"


def measure_observed(arrival_ns: FloatArray, first_ns: FloatArray, end_ns: FloatArray, outputs: FloatArray) -> Service:
    """Measure what a log tells itself; times are NaN where it does not tell."""

    def quantile(values: FloatArray, share: float) -> Figure:
        told = values[np.isfinite(values)]
        return Figure(float(np.quantile(told, share))) if len(told) else Figure()

    with np.errstate(divide="ignore", invalid="ignore"):
        token = np.where(outputs > 1, (end_ns - first_ns) / np.maximum(outputs - 1, 1), np.nan)
    served = np.isfinite(end_ns)
    speed = Figure()
    if served.any():
        span_ns = float((arrival_ns + end_ns)[served].max() - arrival_ns.min())
        speed = Figure(float(outputs[served].sum()) * 1e9 / max(span_ns, 1.0))
    return Service(
        first_token_p50_ns=quantile(first_ns, 0.5),
        first_token_p99_ns=quantile(first_ns, 0.99),
        token_p50_ns=quantile(token, 0.5),
        token_p99_ns=quantile(token, 0.99),
        generation_tok_s=speed,
    )
