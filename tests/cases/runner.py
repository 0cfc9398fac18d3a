"""Turn a case, as written in a file, into a world or into steps; diagnose it and hold the answer against the case.

A case has a `world` (fields of `World`; faults by name with their arguments), perhaps with another as its `baseline`,
`steps` (what is uneven in hand-made steps), `ledger` (what is uneven in what busy ranks tell) or `dumps` (how far each
rank got in each process group), and says what must
be claimed, that nothing of the cause may be, or for which reason it must not be judged.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from dprankdiag.analysis.observations import Observations
from dprankdiag.analysis.skews import measure_skews
from dprankdiag.classifiers import ALL
from dprankdiag.classifiers.precedence import give_way
from dprankdiag.harness import faults
from dprankdiag.harness.faults import Fault, When
from dprankdiag.harness.suites import write_world
from dprankdiag.harness.worlds import World
from dprankdiag.model.claims import Claim
from dprankdiag.model.ledgers import Ledger
from dprankdiag.pipelines.diagnose import Options, diagnose
from dprankdiag.pipelines.ledgers import judge_view, view_whole
from dprankdiag.store.bundle import save_bundle
from tests.analysis.builders import Array, annotate, observe_steps
from tests.flights import build_dumps, write_dumps
from tests.ledgers import build_ledger

SMALL = {"ranks": 8, "steps": 40, "layers": 3, "seed": 5}
KINDS = ("fires", "silent", "abstains")
FAULTS: dict[str, Callable[..., Fault]] = {
    name: getattr(faults, name)
    for name in (
        "slow_gpu",
        "load_context",
        "load_requests",
        "host_late",
        "host_burst",
        "hot_expert",
        "receiver_queue",
        "slow_link",
        "fabric",
        "uniform",
        "load_prefill",
        "load_idle",
        "structural_layout",
        "structural_graph",
    )
}
WHENS: dict[str, Callable[..., When]] = {
    name: getattr(faults, name) for name in ("burst", "onset", "window", "periodic")
}


@dataclass(frozen=True, slots=True)
class Case:
    """A case of a cause.

    Attributes:
        kind: "fires", "silent" or "abstains".
        body: what the file says of it.
    """

    cause: str
    kind: str
    name: str
    body: Mapping[str, Any]

    def __str__(self) -> str:
        return f"{self.cause} {self.kind}: {self.name}"


@dataclass(frozen=True, slots=True)
class Said:
    """A claim or finding, by what a case may ask of it."""

    cause: str
    ranks: tuple[int, ...]
    who: str
    when: str


@dataclass(frozen=True, slots=True)
class Answer:
    """What was said, and the reasons given for not judging, by cause."""

    said: tuple[Said, ...]
    reasons: Mapping[str, Sequence[str]]


def load_cases(folder: Path) -> list[Case]:
    """Read every file of cases in a folder."""
    return [case for path in sorted(folder.glob("*.yml")) for case in _read(path)]


def _read(path: Path) -> Iterator[Case]:
    content = yaml.safe_load(path.read_text("utf-8"))
    if set(content) - {"cause", *KINDS}:
        raise ValueError(f"{path.name}: {sorted(set(content) - {'cause', *KINDS})} is not among {KINDS}")
    for kind in KINDS:
        for name, body in (content.get(kind) or {}).items():
            yield Case(content["cause"], kind, name, body)


def answer_case(case: Case, folder: Path) -> Answer:
    """Diagnose what a case describes."""
    if "world" in case.body:
        return _answer_world(case.body, folder)
    if "ledger" in case.body:
        return _answer_ledger(build_ledger(case.body["ledger"] or {}))
    if "dumps" in case.body:
        return _answer_paths(write_dumps(build_dumps(case.body["dumps"]), folder), _options(case.body))
    return _answer_steps(build_steps(case.body["steps"]))


def _answer_world(body: Mapping[str, Any], folder: Path) -> Answer:
    world = build_world(body["world"])
    paths = write_world(world, folder)
    for rank in body.get("without_ranks", ()):
        paths.pop(rank).unlink()
    for table in body.get("without_tables", ()):
        for path in paths:
            _drop_table(path, table)
    options = _options(body)
    if "baseline" in body:
        options = replace(options, baseline=_save_baseline(build_world(body["baseline"]), folder / "baseline"))
    return _answer_paths(paths, options)


def _answer_ledger(ledger: Ledger) -> Answer:
    claims, abstentions = judge_view(view_whole(ledger))
    reasons: dict[str, list[str]] = {}
    for item in abstentions:
        reasons.setdefault(item.cause, []).append(item.reason)
    return Answer(tuple(Said(item.cause, item.ranks, item.who, "steady") for item in claims), reasons)


def _options(body: Mapping[str, Any]) -> Options:
    return Options(**body.get("options", {}))


def _answer_paths(paths: Sequence[Path], options: Options) -> Answer:
    diagnosis = diagnose(paths, options).diagnosis
    said = tuple(Said(item.cause, item.ranks, item.who, item.when) for item in diagnosis.findings)
    return Answer(said, {item.cause: (item.reason,) for item in diagnosis.abstentions})


def _save_baseline(world: World, folder: Path) -> Path:
    outcome = diagnose(write_world(world, folder))
    bundle = folder / "good.dprank"
    save_bundle(bundle, outcome.diagnosis, outcome.tables)
    return bundle


def _drop_table(path: Path, table: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute(f"DROP TABLE {table}")
        database.commit()


def _answer_steps(seen: Observations) -> Answer:
    skews = measure_skews(seen)
    claims: list[Claim] = []
    reasons: dict[str, list[str]] = {}
    for classifier in ALL:
        for item in classifier.judge(seen, skews):
            if isinstance(item, Claim):
                claims.append(item)
            else:
                reasons.setdefault(item.cause, []).append(item.reason)
    return Answer(tuple(_say(seen, item) for item in give_way(seen, claims)), reasons)


def _say(seen: Observations, claim: Claim) -> Said:
    ranks = tuple(seen.ranks[position].rank for position in claim.ranks)
    return Said(claim.cause, ranks, claim.who, claim.when)


def build_world(fields: Mapping[str, Any]) -> World:
    """Make a world of the fields named, small where they say nothing."""
    known = SMALL | {name: _tuple(value) for name, value in fields.items() if name != "faults"}
    made = tuple(_build_fault(name, arguments) for item in fields.get("faults", ()) for name, arguments in item.items())
    return World(**known, faults=made)


def _build_fault(name: str, arguments: Mapping[str, Any]) -> Fault:
    given = dict(arguments)
    if isinstance(given.get("ranks"), list):
        given["ranks"] = tuple(given["ranks"])
    if "when" in given:
        ((kind, details),) = given["when"].items()
        given["when"] = WHENS[kind](*(details if isinstance(details, list) else [details]))
    return FAULTS[name](**given)


def build_steps(fields: Mapping[str, Any]) -> Observations:
    """Make steps that are even but for what is named.

    `factor`, `add` and `exit` list what is uneven: a component, ranks (all if none), steps `[first, stop]` or
    `every: n`, positions of one side (`pre`, `post`), and a value. `prompts` list prompt tokens of ranks and steps.
    """
    n_steps, n_ranks, layers = (fields.get(name, usual) for name, usual in (("n", 60), ("ranks", 8), ("layers", 3)))
    shape = (n_steps, 2 * layers, n_ranks)
    factor: dict[str, Array] = {}
    add: dict[str, Array] = {}
    for item in fields.get("factor", ()):
        for name in _listed(item["of"]):
            factor[name] = factor.get(name, np.ones(shape)) * np.where(_where(item, shape), item["by"], 1.0)
    for item in fields.get("add", ()):
        add[item["to"]] = add.get(item["to"], np.zeros(shape)) + np.where(_where(item, shape), item["ns"], 0.0)
    late, transfer = np.zeros(shape), np.full(shape, 16_000.0)
    for item in fields.get("exit", ()):
        late += np.where(_where(item, shape), item["ns"], 0.0)
    for item in fields.get("transfer", ()):
        transfer *= np.where(_where(item, shape), item["by"], 1.0)
    transfer *= 1 + 0.02 * np.random.default_rng(3).standard_normal((n_steps, 2 * layers, 1))
    meetings = tuple(fields.get("meetings", ())) * layers
    family = tuple(name if name in ("dispatch", "combine") else "collective" for name in meetings)
    seen = observe_steps(
        n_steps,
        n_ranks,
        layers,
        factor=factor,
        add=add,
        exit_ns=late,
        transfer=transfer,
        family=family,
        operation=meetings,
    )
    able = replace(seen.abilities, **{k: _tuple(v) for k, v in fields.get("abilities", {}).items()})
    changes: dict[str, Any] = {
        name: np.asarray(fields[name], float) for name in ("row_ratio", "prefill_share") if name in fields
    }
    seen = replace(seen, abilities=able, teams=_tuple(fields.get("teams", ())), **changes)
    if "prompts" in fields:
        return _annotate_prompts(seen, fields["prompts"])
    return annotate(seen, **fields["batches"]) if "batches" in fields else seen


def _annotate_prompts(seen: Observations, items: Sequence[Mapping[str, Any]]) -> Observations:
    """Announce as many requests everywhere, and prompts where they are."""
    told = annotate(seen, requests=[20.0] * seen.n_ranks, prefill_tokens=[0.0] * seen.n_ranks)
    shape = (seen.n_steps, 1, seen.n_ranks)
    for item in items:
        where = _where(item, shape)[:, 0]
        for rank, series in enumerate(told.batches):
            series.prefill_tokens[where[:, rank]] = item["tokens"]
    return told


def _where(item: Mapping[str, Any], shape: tuple[int, int, int]) -> Array:
    mask = np.ones(shape, bool)
    if "ranks" in item:
        mask &= np.isin(np.arange(shape[2]), item["ranks"])
    if "steps" in item:
        first, stop = item["steps"]
        mask &= ((np.arange(shape[0]) >= first) & (np.arange(shape[0]) < stop))[:, None, None]
    if "every" in item:
        mask &= (np.arange(shape[0]) % item["every"] == item["every"] - 1)[:, None, None]
    if "positions" in item:
        mask &= np.isin(np.arange(shape[1]), item["positions"])[None, :, None]
    if "side" in item:
        mask &= (np.arange(shape[1]) % 2 == ("pre", "post").index(item["side"]))[None, :, None]
    return mask


def _listed(value: Any) -> list[str]:
    return value if isinstance(value, list) else [value]


def _tuple(value: Any) -> Any:
    return tuple(_tuple(item) for item in value) if isinstance(value, list) else value
