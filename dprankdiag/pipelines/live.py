"""Join what running engines told, now or in a recording: which addresses are one engine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from dprankdiag.analysis.ledgers import Sighting, join_sightings
from dprankdiag.model.ledgers import STORED_IN, Ledger, LedgerAnswer
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.failures import find_base, strip_path
from dprankdiag.pipelines.snapshots import name_ledgers
from dprankdiag.pipelines.stored_homes import arrange_stored
from dprankdiag.pipelines.untimed import ENGINE


def join_live(answers: Sequence[LedgerAnswer], names: dict[str, str] | None = None) -> list[Ledger]:
    """Join answers of running engines, one ledger an engine: its ports and nodes share a model and no rank.

    Args:
        names: address → name of the engine it was part of, which it keeps whoever else comes or goes; added to.
    """
    answers, homes, notes = arrange(answers)
    sources = [_make_source(where, items) for where, items in _group_by_where(answers).items()]
    sightings = [Sighting(answer, homes[find_base(answer)]) for answer in answers]
    ledgers = join_sightings(sightings, None, sources)
    noted = [
        replace(ledger, notes=(*ledger.notes, *notes)) if ledger.facts.get(STORED_IN) else ledger for ledger in ledgers
    ]
    telling = [ledger for ledger in noted if ledger.n_moments]
    return name_ledgers(telling, ()) if names is None else _keep_names(telling, names)


def _keep_names(ledgers: Sequence[Ledger], names: dict[str, str]) -> list[Ledger]:
    """Name ledgers as before where one of their addresses is known, and others by a name that nobody has."""
    proposed = [ledger.name for ledger in name_ledgers(ledgers, ())]
    if names:
        proposed = [
            Path(ledger.name).name if name == ENGINE else name for ledger, name in zip(ledgers, proposed, strict=True)
        ]
    named: list[Ledger] = []
    for ledger, name in zip(ledgers, proposed, strict=True):
        bases = [strip_path(source.path) for source in ledger.sources]
        used = {one.name for one in named}
        known = next((names[base] for base in bases if base in names and names[base] not in used), None)
        fresh = name if name not in used and name not in names.values() else ledger.name
        named.append(replace(ledger, name=known or fresh))
        names |= {base: known or fresh for base in bases if base not in names}
    return named


def arrange(answers: Sequence[LedgerAnswer]) -> tuple[list[LedgerAnswer], dict[str, str], tuple[str, ...]]:
    """Sort answers of engines, and of servers that stored what they told, by engine.

    Returns:
        The answers, those of one engine on common moments; the place of each address; and what could not be told.
    """
    stored = arrange_stored([answer for answer in answers if answer.is_stored])
    asked = [answer for answer in answers if not answer.is_stored]
    return [*asked, *stored.answers], find_homes(asked) | stored.homes, stored.notes


def find_homes(answers: Iterable[LedgerAnswer]) -> dict[str, str]:
    """Find the place of each address: that of another one whose engine it is a part of, else its own.

    Nodes and ports of an engine tell the same model and share no rank. Publishers and shared memory tell no model: they
    belong to the only engine there is, if there is one.
    """
    ranks: dict[str, set[int]] = {}
    who: dict[str, tuple[object, ...]] = {}
    for answer in answers:
        told = ranks.setdefault(find_base(answer), set())
        if answer.model is not None and answer.ranks:
            told.update(answer.ranks)
            who[find_base(answer)] = (answer.engine, answer.model, answer.role)
    homes: dict[str, str] = {}
    members: dict[str, set[int]] = {}
    for base in who:
        mates = [home for home, taken in members.items() if who[home] == who[base] and not taken & ranks[base]]
        homes[base] = mates[0] if mates else base
        members.setdefault(homes[base], set()).update(ranks[base])
    only = next(iter(members)) if len(members) == 1 else None
    return {base: homes.get(base, only or base) for base in ranks}


def _group_by_where(answers: Iterable[LedgerAnswer]) -> dict[str, list[LedgerAnswer]]:
    grouped: dict[str, list[LedgerAnswer]] = {}
    for answer in answers:
        grouped.setdefault(answer.where, []).append(answer)
    return grouped


def _make_source(where: str, answers: Sequence[LedgerAnswer]) -> Source:
    latest = answers[-1]
    version = next((str(one.facts["version"]) for one in answers if "version" in one.facts), None)
    return Source(
        where,
        latest.interface,
        "used",
        producer=" ".join(part for part in (latest.engine, version) if part),
        ranks=tuple(sorted({rank for answer in answers for rank in answer.ranks})),
        warnings=tuple(dict.fromkeys(text for answer in answers for text in answer.warnings)),
    )
