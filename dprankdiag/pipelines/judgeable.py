"""Say which causes can be judged from the numbers that a target tells."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from dprankdiag.catalog.checks import Need, load_needs
from dprankdiag.catalog.identifiability import Ability, load_identifiability, load_inputs
from dprankdiag.model.checkup import Judgeable
from dprankdiag.model.ledgers import EngineName

METRICS, TRACE, DUMPS = "metrics", "trace-kernels-calls", "flight-recorder"
"""Kinds of input as the catalogue of what can be told calls them."""


def judge_causes(engine: EngineName | None, fields: Collection[str]) -> tuple[Judgeable, ...]:
    """Judge every cause of the catalogue.

    Args:
        fields: fields of the ledger that are told and counted.
    """
    needs = load_needs()
    return tuple(
        _judge(cause, abilities, [need for need in needs.get(cause, ()) if need.engine in (None, engine)], fields)
        for cause, abilities in load_identifiability().items()
    )


def _judge(cause: str, abilities: Mapping[str, Ability], needs: Sequence[Need], fields: Collection[str]) -> Judgeable:
    for need in needs:
        if set(need.fields) <= set(fields):
            return Judgeable(cause, "can", need.text, None)
    if needs:
        lacking = [name for name in needs[0].fields if name not in fields]
        text = f"{needs[0].text} (not told: {', '.join(lacking)})"
        return Judgeable(cause, "needs", text, needs[0].get_it_with or abilities[METRICS].get_it_with)
    better = next((kind for kind in (TRACE, DUMPS) if abilities[kind].answer == "can"), TRACE)
    return Judgeable(cause, "cannot", "no number of this engine shows it", load_inputs()[better].get_it_with)
