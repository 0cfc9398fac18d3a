"""Join the what-ifs of two readings of the same counters: where they agree, it does not matter which one is true."""

from __future__ import annotations

from dataclasses import fields, replace

from dprankdiag.model.whatif import Figure, Option, Service, WhatIf
from dprankdiag.pipelines.whatif import conclude
from dprankdiag.units import format_ratio

MOST_APART = 0.06
"""Gains further apart than this are given as bounds only: none of the two is within three points of the middle."""

MOST_APART_RATIO = 0.2
"""The same of other numbers, as a share."""


def join_readings(alike: WhatIf, one_long: WhatIf) -> WhatIf:
    """Join what two readings make of each option; intervals hold both.

    Args:
        alike: requests of one look taken as alike.
        one_long: one of them taken to be as long as it can be.
    """
    if not alike.options or not one_long.options:
        told = alike if alike.options else one_long
        wrong = "alike" if told is one_long else "so that one was long"
        note = f"requests that came between two looks, if they were {wrong}, would not have taken the observed time"
        return replace(told, notes=(*told.notes, note)) if told.options else told
    others = {option.key: option for option in one_long.options}
    options = tuple(_join_options(option, others[option.key]) for option in alike.options if option.key in others)
    replayed = alike.replayed
    if replayed is not None and one_long.replayed is not None:
        replayed = _join_services(replayed, one_long.replayed)
    return conclude(replace(alike, options=options, replayed=replayed))


def _join_options(one: Option, other: Option) -> Option:
    gain = _join(one.gain_ratio, other.gain_ratio, MOST_APART)
    reasons = one.reasons
    if gain.value is None and one.gain_ratio.value is not None and other.gain_ratio.value is not None:
        first, second = format_ratio(one.gain_ratio.value), format_ratio(other.gain_ratio.value)
        reasons = (*reasons, f"{first} if requests that came between two looks were alike, {second} if one was long")
    tied = tuple(sorted({*one.tied_with, *other.tied_with}))
    return replace(
        one, gain_ratio=gain, served=_join_services(one.served, other.served), reasons=reasons, tied_with=tied
    )


def _join_services(one: Service, other: Service) -> Service:
    joined = {}
    for field in fields(Service):
        mine, theirs = getattr(one, field.name), getattr(other, field.name)
        joined[field.name] = _join(mine, theirs, MOST_APART_RATIO * abs(mine.value or 0.0))
    return Service(**joined)


def _join(one: Figure, other: Figure, most: float) -> Figure:
    """Take the middle of two numbers, or only their bounds where they are too far apart."""
    if one.value is None or other.value is None:
        return Figure()
    ends = [one.value, other.value, *(one.interval or ()), *(other.interval or ())]
    middle = (one.value + other.value) / 2 if abs(one.value - other.value) <= most else None
    return Figure(middle, (min(ends), max(ends)))
