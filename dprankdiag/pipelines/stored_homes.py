"""Sort what a Prometheus server stored by engine: nodes and ports belong together, replicas do not.

Targets of one cluster, namespace and job that serve the same model and share no rank are one engine; those that show
the same ranks one after the other are one that was started anew elsewhere; those that show the same ranks at the same
time are replicas. Where replicas consist of several targets each, nothing in the labels tells which belong together:
each target is judged by itself then, for a rank must not be held against those of another engine.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from dprankdiag.model.ledgers import STORED_IN, STORED_INSTANCE, LedgerAnswer
from dprankdiag.pipelines.failures import find_base

_LIKE = 0.1
"""Targets whose usual gaps differ by no more than this share are scraped in one rhythm."""


@dataclass(slots=True)
class _Target:
    """One process that was scraped.

    Attributes:
        who: engine, model and role.
    """

    base: str
    instance: str
    who: tuple[object, ...]
    ranks: set[int] = field(default_factory=set)
    stamps: list[int] = field(default_factory=list)

    @property
    def model(self) -> object:
        return self.who[1]

    @property
    def span(self) -> tuple[int, int]:
        return min(self.stamps, default=0), max(self.stamps, default=0)

    @property
    def gap_ns(self) -> float | None:
        ordered = sorted(set(self.stamps))
        gaps = [later - earlier for earlier, later in itertools.pairwise(ordered)]
        return statistics.median(gaps) if gaps else None

    def overlaps(self, other: _Target) -> bool:
        """Tell whether both were scraped at the same time and show a rank in common."""
        if not self.ranks & other.ranks:
            return False
        (first, last), (begin, end) = self.span, other.span
        return max(first, begin) <= min(last, end)


@dataclass(frozen=True, slots=True)
class Arranged:
    """Stored answers, sorted.

    Attributes:
        answers: those of an engine of several targets on common moments.
        homes: address of a target → the place of its engine.
        notes: what could not be told.
    """

    answers: tuple[LedgerAnswer, ...]
    homes: dict[str, str]
    notes: tuple[str, ...]


def arrange_stored(answers: Sequence[LedgerAnswer]) -> Arranged:
    """Sort stored answers by engine, and lay those of one engine on common moments."""
    homes: dict[str, str] = {}
    notes: list[str] = []
    stamps: dict[str, dict[int, int]] = {}
    for place, targets in _group(answers).items():
        engines, doubt = _join_targets(targets)
        notes += [f"{place}: {doubt}"] if doubt else []
        for engine in engines:
            name = place if len(engines) == 1 else f"{place}/{engine[0].instance}"
            homes |= {target.base: name for target in engine}
            stamps |= _lay_together(engine)
    laid = tuple(_move(answer, stamps.get(find_base(answer), {})) for answer in answers)
    return Arranged(laid, homes, tuple(notes))


def _group(answers: Iterable[LedgerAnswer]) -> dict[str, list[_Target]]:
    """Group targets by server, cluster, namespace, job, and who they are."""
    targets: dict[tuple[str, str, tuple[object, ...]], _Target] = {}
    places: dict[str, list[_Target]] = {}
    for answer in answers:
        server = answer.where.partition("://")[2].partition(" ")[0] or answer.where.partition(" ")[0]
        place = f"{server}/{answer.facts[STORED_IN]}".rstrip("/")
        who = (answer.engine, answer.model, answer.role)
        key = (place, find_base(answer), who)
        if key not in targets:
            targets[key] = _Target(find_base(answer), str(answer.facts.get(STORED_INSTANCE, "")), who)
            places.setdefault(place, []).append(targets[key])
        targets[key].ranks.update(answer.ranks)
        targets[key].stamps += [] if answer.taken_ns is None else [answer.taken_ns]
    return places


def _join_targets(targets: Sequence[_Target]) -> tuple[list[list[_Target]], str]:
    """Join the targets of one job to engines; and say what could not be told."""
    engines: list[list[_Target]] = []
    doubts: list[str] = []
    for who in dict.fromkeys(target.who for target in targets if target.model):
        mine = sorted((one for one in targets if one.who == who), key=lambda one: (one.span[0], one.instance))
        everyone = set().union(*(one.ranks for one in mine))
        has_twins = any(one.overlaps(other) for place, one in enumerate(mine) for other in mine[:place])
        if has_twins and any(one.ranks != everyone for one in mine):
            doubts.append(
                f"{len(mine)} targets show the same ranks, each only some of them; which belong together is not told, "
                "so that each is judged by itself; choose one engine with --select"
            )
            engines += [[one] for one in mine]
            continue
        joined: list[list[_Target]] = []
        for one in mine:
            home = next((mates for mates in joined if not any(one.overlaps(mate) for mate in mates)), None)
            if home is None:
                joined.append([one])
            else:
                home.append(one)
        engines += joined
    for one in targets:
        if not one.model:
            _place_loose(one, engines)
    return _merge_kin(engines), "; ".join(doubts)


def _place_loose(target: _Target, engines: list[list[_Target]]) -> None:
    """Put a target that tells no model (load answers) to the only engine of its job whose ranks it tells of."""
    homes = [engine for engine in engines if target.ranks <= set().union(*(mate.ranks for mate in engine))]
    if len(homes) == 1:
        homes[0].append(target)
    else:
        engines.append([target])


def _merge_kin(engines: list[list[_Target]]) -> list[list[_Target]]:
    """Put engines of different roles or models that sit at the same addresses together: one place, parted later."""
    merged: list[list[_Target]] = []
    for engine in engines:
        bases = {target.base for target in engine}
        home = next((one for one in merged if bases & {target.base for target in one}), None)
        if home is None:
            merged.append(engine)
        else:
            home += engine
    return merged


def _lay_together(engine: Sequence[_Target]) -> dict[str, dict[int, int]]:
    """Find the common moment of each sample of an engine's targets: address → stamp → moment.

    Prometheus scrapes targets one after the other within an interval, each at its own constant place in it. So what a
    target grew by from scrape to scrape can be held against that of others, if their n-th scrapes are taken as one
    moment.
    """
    gaps = [target.gap_ns for target in engine if target.gap_ns]
    if len({target.base for target in engine}) < 2 or not gaps:
        return {}
    usual = statistics.median(gaps)
    begin = min(target.span[0] for target in engine)
    laid: dict[str, dict[int, int]] = {}
    for target in engine:
        if target.gap_ns is not None and abs(target.gap_ns - usual) > _LIKE * usual:
            continue
        ordered = sorted(set(target.stamps))
        place = int((ordered[0] - begin) // usual) if ordered else 0
        for earlier, stamp in zip([None, *ordered], ordered, strict=False):
            place += 0 if earlier is None else max(1, round((stamp - earlier) / usual))
            laid.setdefault(target.base, {})[stamp] = begin + round(place * usual)
    return laid


def _move(answer: LedgerAnswer, moments: dict[int, int]) -> LedgerAnswer:
    moment = None if answer.taken_ns is None else moments.get(answer.taken_ns)
    return answer if moment is None or moment == answer.taken_ns else replace(answer, taken_ns=moment)
