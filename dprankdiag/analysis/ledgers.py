"""Join answers to ledgers: what belongs to one target, in which order, on which time axis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.ledger_order import order_answers, stamp_of
from dprankdiag.catalog.ledger import load_fields
from dprankdiag.errors import UsageError
from dprankdiag.model.ledgers import BoolArray, Fact, FloatArray, Ledger, LedgerAnswer
from dprankdiag.model.sources import Source
from dprankdiag.units import NS_PER_S

_FIRST_FIELDS = ("sglang-metrics", "vllm-metrics", "sglang-loads")
"""Interfaces whose word goes first where several tell the same field."""

_SAME_MOMENT = 0.4
"""Answers of several interfaces are of one moment if nearer than this share of the time between moments: one tick asks
them one after the other."""

MOST = 1e24
"""No engine counts so far: a larger number is damage."""

FEWEST_SWINGS = 2
"""A process may restart; counters that fall and are back so often are those of several processes."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """An answer, and what its giver says of it.

    Attributes:
        place: folder of a file or name of a live target; answers of different places are of different targets.
        name: the target's name if the user gave one; it wins over the place.
        at_s: seconds on the user's own axis, if given.
    """

    answer: LedgerAnswer
    place: str
    name: str | None = None
    at_s: float | None = None


@dataclass(frozen=True, slots=True)
class _Stream:
    """Answers of one interface about the same ranks, in order; `restarts` are those whose counters fell."""

    answers: tuple[LedgerAnswer, ...]
    at_s: tuple[float | None, ...]
    notes: tuple[str, ...] = ()

    @property
    def first(self) -> LedgerAnswer:
        return self.answers[0]


def join_sightings(
    sightings: Sequence[Sighting], interval_s: float | None = None, sources: Sequence[Source] = ()
) -> list[Ledger]:
    """Join answers to one ledger a target.

    Args:
        interval_s: seconds between moments where nothing else tells.
        sources: inputs to report, by the path in `LedgerAnswer.where`.

    Raises:
        UsageError: two targets with equal labels cannot be told apart.
    """
    places: dict[str, list[Sighting]] = {}
    for sighting in sightings:
        places.setdefault(sighting.name or sighting.place, []).append(sighting)
    ledgers: list[Ledger] = []
    for place, members in places.items():
        streams = list(_make_streams(members))
        ledgers += [_join_streams(place, parts, interval_s, sources) for parts in _split_targets(streams)]
    return _name_apart(ledgers)


def _make_streams(sightings: Sequence[Sighting]) -> Iterator[_Stream]:
    groups: dict[tuple[object, ...], list[Sighting]] = {}
    for sighting in sightings:
        answer = sighting.answer
        key = (answer.interface, answer.model, answer.role, answer.ranks, answer.unlabelled)
        groups.setdefault(key, []).append(sighting)
    for group in _absorb_partial(list(groups.values())):
        answers, order, notes = order_answers([item.answer for item in group], [item.at_s for item in group])
        yield _Stream(answers, tuple(group[place].at_s for place in order), notes)


def _absorb_partial(groups: list[list[Sighting]]) -> list[list[Sighting]]:
    """Put answers that speak of some of the ranks of others of their kind with these: ranks come and go."""
    kept: list[list[Sighting]] = []
    for group in sorted(groups, key=lambda items: -len(items[0].answer.ranks)):
        answer = group[0].answer
        home = next((one for one in kept if _is_part(answer, one[0].answer)), None)
        if home is not None and not _have_twins(group, home):
            home += group
        else:
            kept.append(list(group))
    return kept


def _is_part(one: LedgerAnswer, whole: LedgerAnswer) -> bool:
    same = (one.interface, one.model, one.role) == (whole.interface, whole.model, whole.role)
    return same and bool(one.ranks) and set(one.ranks) < set(whole.ranks)


def _have_twins(group: Sequence[Sighting], home: Sequence[Sighting]) -> bool:
    """Tell parts taken at the very moment of a whole: they repeat it (one rank asked for by number)."""
    stamps = {item.answer.taken_ns for item in home if item.answer.taken_ns is not None}
    return any(item.answer.taken_ns in stamps for item in group)


def _split_targets(streams: Sequence[_Stream]) -> list[list[_Stream]]:
    """Part the streams of a place into targets: by model and role where told; what does not tell joins the rest."""
    targets: dict[tuple[str, str | None, str | None], list[_Stream]] = {}
    loose: list[_Stream] = []
    for stream in streams:
        answer = stream.first
        if answer.model is None:
            loose.append(stream)
        else:
            targets.setdefault((answer.engine, answer.model, answer.role), []).append(stream)
    for stream in sorted(loose, key=lambda one: not one.first.ranks):
        homes = [parts for key, parts in targets.items() if _may_join(stream.first, key, parts)]
        if len(homes) == 1:
            homes[0].append(stream)
        else:
            targets.setdefault((stream.first.engine, "", stream.first.role), []).append(stream)
    return list(targets.values())


def _may_join(answer: LedgerAnswer, key: tuple[str, str | None, str | None], parts: Sequence[_Stream]) -> bool:
    engine, _, role = key
    ranks = {rank for part in parts for rank in part.first.ranks}
    return (
        answer.engine == engine
        and (answer.role is None or role is None or answer.role == role)
        and (not answer.ranks or not ranks or set(answer.ranks) <= ranks or ranks <= set(answer.ranks))
    )


def _join_streams(
    place: str, streams: Sequence[_Stream], interval_s: float | None, sources: Sequence[Source]
) -> Ledger:
    ordered = sorted(streams, key=lambda one: _rate_interface(one.first.interface))
    telling = _leave_out_logs([one for one in ordered if one.first.ranks or one.first.expert_tokens is not None])
    ranks = tuple(sorted({rank for one in telling for rank in _all_ranks(one)}))
    axis = _make_axis(telling, interval_s)
    values: dict[str, FloatArray] = {}
    for stream in telling:
        for answers, moments in _list_blocks(stream, axis.places[id(stream)]):
            _lay(values, answers, moments, ranks, axis.count)
    restarted = _find_restarts(values, axis.count, len(ranks))
    wheres = {answer.where for stream in streams for answer in stream.answers}
    return Ledger(
        place,
        streams[0].first.engine,
        next((one.first.model for one in ordered if one.first.model), None),
        next((one.first.role for one in ordered if one.first.role), None),
        ranks,
        axis.seconds,
        axis.start_ns,
        values,
        restarted,
        _join_experts(telling, axis),
        _join_facts(ordered),
        tuple(dict.fromkeys(one.first.interface for one in ordered)),
        any(answer.unlabelled for one in ordered for answer in one.answers),
        tuple(source for source in sources if source.path in wheres),
        tuple(dict.fromkeys(note for one in streams for note in (*one.notes, *_warnings(one)))),
        _do_swing(values, restarted),
    )


def _leave_out_logs(streams: list[_Stream]) -> list[_Stream]:
    """Use a log only where nothing else tells of ranks: it says the same less exactly, and of other times."""
    exact = [one for one in streams if not one.first.interface.endswith("-log")]
    return exact or streams


def _rate_interface(interface: str) -> int:
    return _FIRST_FIELDS.index(interface) if interface in _FIRST_FIELDS else len(_FIRST_FIELDS)


def _all_ranks(stream: _Stream) -> set[int]:
    return {rank for answer in stream.answers for rank in answer.ranks}


def _warnings(stream: _Stream) -> Iterator[str]:
    for answer in stream.answers:
        yield from (f"{answer.where}: {text}" for text in answer.warnings)


@dataclass(frozen=True, slots=True)
class _Axis:
    """The moments of a target.

    Attributes:
        places: interface stream (by identity) → the moment of each of its answers.
    """

    count: int
    seconds: FloatArray | None
    start_ns: int | None
    places: Mapping[int, tuple[int, ...]]

    def place(self, stream: _Stream, index: int) -> int:
        return self.places[id(stream)][index]


def _make_axis(streams: Sequence[_Stream], interval_s: float | None) -> _Axis:
    """Lay all streams on common moments.

    By their times if all tell; else the moments are those of the stream of highest standing, whose times are those of
    another that has as many answers, or unknown.
    """
    if not streams:
        return _Axis(0, None, None, {})
    said = [one for one in streams if one.at_s[0] is not None]
    # The user's seconds and stamps do not count from the same moment.
    times = {id(one): known for one in said or streams if (known := _times_of(one)) is not None}
    if len(times) == len(streams):
        return _merge_times(times, streams)
    count = len((said or streams)[0].answers)
    clock = next((one for one in streams if id(one) in times and len(one.answers) == count), None)
    if clock is None:
        seconds = None if interval_s is None else np.arange(count, dtype=np.float64) * interval_s
        return _Axis(count, seconds, None, {id(one): _from_the_end(one, count) for one in streams})
    anchors = times[id(clock)]
    places = {
        id(one): _nearest(anchors, times[id(one)]) if id(one) in times else _from_the_end(one, count) for one in streams
    }
    start_ns = None if clock.at_s[0] is not None else round(float(anchors[0]) * NS_PER_S)
    return _Axis(count, anchors - anchors[0], start_ns, places)


def _from_the_end(stream: _Stream, count: int) -> tuple[int, ...]:
    """Lay the n-th last of a stream's answers to the n-th last moment; what came before the first belongs to it."""
    return tuple(max(count - len(stream.answers) + index, 0) for index in range(len(stream.answers)))


def _nearest(anchors: FloatArray, known: FloatArray) -> tuple[int, ...]:
    return tuple(int(np.abs(anchors - one).argmin()) for one in known)


def _times_of(stream: _Stream) -> FloatArray | None:
    """Return the seconds of a stream's answers: the user's, else the stamps'; None if any is unknown."""
    if all(one is not None for one in stream.at_s):
        return np.array(stream.at_s, np.float64)
    taken = [answer.taken_ns for answer in stream.answers]
    stamps = [
        stamp_of(answer) if taken_ns is None else taken_ns / NS_PER_S
        for answer, taken_ns in zip(stream.answers, taken, strict=True)
    ]
    return None if None in stamps else np.array(stamps, np.float64)


def _merge_times(times: Mapping[int, FloatArray], streams: Sequence[_Stream]) -> _Axis:
    every = np.unique(np.concatenate(list(times.values())))
    anchors = _thin(every, _usual_gap(times.values()))
    places = {key: _nearest(anchors, known) for key, known in times.items()}
    on_user_axis = any(one.at_s[0] is not None for one in streams)
    start_ns = None if on_user_axis else round(float(anchors[0]) * NS_PER_S)
    return _Axis(len(anchors), anchors - anchors[0], start_ns, places)


def _usual_gap(series: Iterable[FloatArray]) -> float:
    gaps = [np.diff(one) for one in series if len(one) > 1]
    joined = np.concatenate(gaps) if gaps else np.empty(0)
    joined = joined[joined > 0]
    return float(np.median(joined)) if len(joined) else 1.0


def _thin(every: FloatArray, gap_s: float) -> FloatArray:
    """Keep one time for those that lie closer together than one moment from the next."""
    kept = [float(every[0])]
    for one in every[1:]:
        if one - kept[-1] > _SAME_MOMENT * gap_s:
            kept.append(float(one))
    return np.array(kept)


def _list_blocks(stream: _Stream, moments: tuple[int, ...]) -> Iterator[tuple[Sequence[LedgerAnswer], tuple[int, ...]]]:
    """List answers that can be laid at once: of the same ranks, no two at one moment."""
    answers = stream.answers
    if len(set(moments)) == len(moments) and all(answer.ranks == answers[0].ranks for answer in answers):
        yield answers, moments
    else:
        yield from (([answer], (moment,)) for answer, moment in zip(answers, moments, strict=True))


def _lay(
    values: dict[str, FloatArray],
    answers: Sequence[LedgerAnswer],
    moments: tuple[int, ...],
    ranks: tuple[int, ...],
    count: int,
) -> None:
    """Write answers about the same ranks into the table; what an interface of higher standing told stays."""
    columns = np.searchsorted(np.array(ranks), np.array(answers[0].ranks, np.int64))
    for name in dict.fromkeys(name for answer in answers for name in answer.values):
        table = values.get(name)
        if table is None:
            table = values[name] = np.full((count, len(ranks)), np.nan)
        telling = [place for place, answer in enumerate(answers) if name in answer.values]
        told = np.array([answers[place].values[name] for place in telling])
        where = np.ix_(np.array(moments)[telling], columns)
        before = table[where]
        table[where] = np.where(np.isnan(before) & (np.abs(told) < MOST), told, before)


def _find_restarts(values: Mapping[str, FloatArray], count: int, n_ranks: int) -> BoolArray:
    """Find moments at which a rank's counters fell since it was last seen."""
    fell = np.zeros((count, n_ranks), bool)
    fields = load_fields()
    for name, table in values.items():
        if name in fields and fields[name].kind == "counter":
            before = _carry(table)
            fell[1:] |= table[1:] < before[:-1]
    return fell


def _do_swing(values: Mapping[str, FloatArray], restarted: BoolArray) -> bool:
    """Tell whether a counter fell twice or more and each time was soon above where it had been."""
    if int(restarted.sum(axis=0).max(initial=0)) < FEWEST_SWINGS:
        return False
    fields = load_fields()
    counters = [_carry(table) for name, table in values.items() if name in fields and fields[name].kind == "counter"]
    for table in counters:
        fell = table[1:] < table[:-1]
        soon = np.full(fell.shape, -np.inf)
        for ahead in (2, 3):
            soon[: len(table) - ahead] = np.fmax(soon[: len(table) - ahead], table[ahead:])
        if ((fell & (soon >= table[:-1])).sum(axis=0) >= FEWEST_SWINGS).any():
            return True
    return False


def _carry(table: FloatArray) -> FloatArray:
    """Fill gaps with the value last seen."""
    seen = np.where(np.isnan(table), 0, np.arange(len(table))[:, None])
    np.maximum.accumulate(seen, axis=0, out=seen)
    return np.take_along_axis(table, seen, axis=0)


def _join_experts(streams: Sequence[_Stream], axis: _Axis) -> FloatArray | None:
    """Lay the expert counts of the streams on the moments; counts of another shape than the latest are left out."""
    told = [
        (axis.place(one, index), answer.expert_tokens) for one in streams for index, answer in enumerate(one.answers)
    ]
    known = [(moment, counts) for moment, counts in told if counts is not None]
    if not known:
        return None
    shape = max(known, key=lambda item: item[0])[1].shape
    table = np.full((axis.count, *shape), np.nan)
    for moment, counts in known:
        if counts.shape == shape:
            table[moment] = counts
    return table


def _join_facts(streams: Sequence[_Stream]) -> dict[str, Fact]:
    facts: dict[str, Fact] = {}
    for stream in reversed(streams):
        for answer in stream.answers:
            facts |= answer.facts
    return facts


def _tell_apart(one: Ledger, kin: Sequence[Ledger]) -> str:
    """Add to a name what differs among the targets of one place."""
    told = [(it.role, it.model and it.model.rsplit("/", 1)[-1]) for it in kin]
    differing = [
        part for part, column in zip(told[kin.index(one)], zip(*told, strict=True), strict=True) if len(set(column)) > 1
    ]
    return ":".join(str(part) for part in (one.name, *differing) if part)


def _name_apart(ledgers: list[Ledger]) -> list[Ledger]:
    """Give targets of one place names of their own: the role, else the model.

    Raises:
        UsageError: nothing tells them apart.
    """
    counts: dict[str, int] = {}
    for ledger in ledgers:
        counts[ledger.name] = counts.get(ledger.name, 0) + 1
    named = [
        replace(one, name=_tell_apart(one, [it for it in ledgers if it.name == one.name]))
        if counts[one.name] > 1
        else one
        for one in ledgers
    ]
    names = [one.name for one in named]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(
                "holds two targets with equal labels", where=name, mend="name them: dprankdiag analyze A=PATH B=PATH"
            )
    return named
