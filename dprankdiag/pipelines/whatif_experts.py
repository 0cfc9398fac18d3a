"""What other places and copies of experts would save, from counted tokens and the recorded times of their layers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.errors import UsageError
from dprankdiag.model.expert_counts import ExpertCounts, IntArray
from dprankdiag.model.results import COMPONENTS
from dprankdiag.model.schema import Columns
from dprankdiag.model.serving import Serving
from dprankdiag.model.whatif import Figure, Option, Service, Unpriced
from dprankdiag.simulate.expert_moves import count_moves
from dprankdiag.simulate.expert_times import (
    SURELY,
    ExpertFit,
    ExpertWork,
    RecordedExperts,
    fit_expert_times,
    save_time,
    spread_work,
)
from dprankdiag.simulate.experts import Placement, place_experts, place_in_order
from dprankdiag.units import format_bytes, format_ratio

REDUNDANT = (0, 32, 64, 96, 128)
"""Copies that are tried as far as slots divide by GPUs; where none of them does, one and two a GPU."""

STEPS_BETWEEN = {"sglang": 1000, "vllm": 3000}
"""Steps from one rearrangement to the next unless set.

Source: sglang 0.5.23 `eplb_rebalance_num_iterations`; vLLM 0.33.0 `step_interval`.
"""

MOST_MISS_RATIO = 0.03
"""Layers that the fit misses by more give no gain (DESIGN 2.1, rule 4)."""

FEWEST_HALVES = 8
"""Passes from which experts are placed by the first half and judged by the second."""

_GET_IT = "SGLang: --expert-distribution-recorder-mode stat, then /start_, /stop_ and /dump_expert_distribution_record"


@dataclass(frozen=True, slots=True)
class ExpertPlan:
    """What the user says of rearranging experts; None where nothing.

    Attributes:
        expert_bytes: weights of one expert of one layer.
        link_bytes_s: into one GPU.
        steps_between: rearrangements.
        nodes: over which the GPUs are spread evenly.
        groups: in which the model routes (`n_group`).
    """

    expert_bytes: int | None = None
    link_bytes_s: int | None = None
    steps_between: int | None = None
    nodes: int = 1
    groups: int = 1


@dataclass(frozen=True, slots=True, eq=False)
class ExpertCase:
    """All that an expert option is computed from.

    Attributes:
        tokens: of the layers that have experts, `(n_passes, n_layers, n_logical)`.
        current: the placement that served.
        recorded: by kind of step, with how many steps it has.
        wall_ns: of all steps of the group.
        steps: of the group.
    """

    tokens: IntArray
    current: Placement
    recorded: tuple[tuple[int, RecordedExperts], ...]
    wall_ns: float
    steps: int


def price_experts(
    tables: Mapping[str, Columns], group: int, counts: ExpertCounts | None, plan: ExpertPlan, serving: Serving
) -> tuple[tuple[Option, ...], tuple[Unpriced, ...]]:
    """Price placements by counted tokens; what cannot be told says why.

    Raises:
        UsageError: GPUs do not divide by the nodes, or experts by the groups.
    """
    if counts is None:
        reason = "no counts of tokens by expert were given"
        return (), (Unpriced("experts", reason, ("expert counts",), f"{_GET_IT}, then whatif --experts FILE"),)
    case = _make_case(tables, group, counts)
    if isinstance(case, ExpertCase):
        check_plan(plan, case.current)
    if isinstance(case, str):
        return (), (Unpriced("experts", case, (), _GET_IT),)
    fits = []
    for steps, recorded in case.recorded:
        fit = fit_expert_times(recorded, spread_work(case.current, case.tokens))
        doubt = _find_doubt(fit)
        if doubt is not None:
            return (), (Unpriced("experts", doubt, (), "count and record at the same time, with the same load"),)
        fits.append((steps, recorded, fit))
    return tuple(_price_all(case, fits, counts, plan, serving)), tuple(_list_sizes(case))


def _find_doubt(fit: ExpertFit) -> str | None:
    if fit.certainty < SURELY or fit.terms[1:].sum() <= 0:
        return "the recorded times of experts do not go with the counted tokens: of another load, or another placement"
    if fit.error_ratio > MOST_MISS_RATIO:
        return f"fitted to the counts, layers miss the recorded ones by {format_ratio(fit.error_ratio)}"
    return None


def _make_case(tables: Mapping[str, Columns], group: int, counts: ExpertCounts) -> ExpertCase | str:
    """Bring counted layers and recorded ones together, or say why they do not fit."""
    kinds = tables["kinds"]
    numbers = kinds["kind"][kinds["group"] == group].tolist()
    steps = kinds["steps"][kinds["group"] == group].tolist()
    found = [(n, recorded) for kind, n in zip(numbers, steps, strict=True)
             for recorded in [read_expert_layers(tables, group, kind)] if recorded is not None]  # fmt: skip
    if not found:
        return "no expert kernels were seen in the recording"
    active = np.flatnonzero(counts.tokens.any(axis=(0, 2)))
    tokens = counts.tokens[:, active]
    n_layers, n_ranks = found[0][1].expert_ns.shape
    fitting = tuple((n, recorded) for n, recorded in found if len(recorded.expert_ns) == len(active))
    if not fitting:
        return f"tokens are counted in {len(active)} layers, experts were recorded in {n_layers}"
    n_logical = tokens.shape[2]
    if counts.slots is not None:
        slots = counts.slots[active]
        if slots.shape[1] % n_ranks:
            return f"{slots.shape[1]} slots were counted, which do not divide by the {n_ranks} ranks recorded"
        current = Placement(slots, n_logical, n_ranks)
    elif n_logical % n_ranks:
        return f"{n_logical} experts do not divide by the {n_ranks} ranks recorded, and no placement is told"
    else:
        current = place_in_order(len(active), n_logical, n_logical, n_ranks)
    walls = tables["step_walls"]
    mine = walls["measured_ns"][walls["group"] == group]
    return ExpertCase(tokens, current, fitting, float(mine.sum()), len(mine))


def read_expert_layers(tables: Mapping[str, Columns], group: int, kind: int) -> RecordedExperts | None:
    """Read the segments with experts of a kind of step, one a layer; None if it has none."""
    layers = tables["layers"]
    mine = (layers["group"] == group) & (layers["kind"] == kind)
    if not mine.any():
        return None
    n_positions = int(layers["position"][mine].max()) + 1
    parts = {name: layers[f"{name}_ns"][mine].reshape(n_positions, -1).astype(np.float64) for name in COMPONENTS}
    wait = layers["wait_ns"][mine].reshape(n_positions, -1).astype(np.float64)
    layer = layers["layer"][mine].reshape(n_positions, -1)[:, 0]
    expert = parts["expert"]
    busiest: dict[int, int] = {}
    for position in np.flatnonzero(expert.min(axis=1) > 0).tolist():
        best = busiest.setdefault(int(layer[position]), position)
        if expert[position].sum() > expert[best].sum():
            busiest[int(layer[position])] = position
    if not busiest:
        return None
    places = [busiest[number] for number in sorted(busiest)]
    segment = np.sum(list(parts.values()), axis=0)[places]
    return RecordedExperts(expert[places], segment - expert[places], segment + wait[places])


def _price_all(
    case: ExpertCase,
    fits: Sequence[tuple[int, RecordedExperts, ExpertFit]],
    counts: ExpertCounts,
    plan: ExpertPlan,
    serving: Serving,
) -> Iterator[Option]:
    half = len(case.tokens) // 2 if len(case.tokens) >= FEWEST_HALVES else 0
    seen, judged = (case.tokens[:half], case.tokens[half:]) if half else (case.tokens, case.tokens)
    current = spread_work(case.current, judged)
    for redundant in list_redundant(case.current.n_logical, case.current.n_gpus):
        after = _place(case, seen, redundant, plan)
        later = _place(case, judged, redundant, plan)
        saved = _save_in_all(case, fits, current, spread_work(after, judged))
        yield _make_option(case, saved, redundant, after, later if half else None, counts, plan, serving)


def _list_sizes(case: ExpertCase) -> Iterator[Unpriced]:
    """Tell how uneven experts would be over half and twice as many GPUs; what a step takes then, nothing tells."""
    n_logical, n_gpus = case.current.n_logical, case.current.n_gpus
    now = _find_busiest(case.current, case.tokens)
    for size in (n_gpus // 2, 2 * n_gpus):
        if size < 2 or n_logical % size:
            continue
        busiest = _find_busiest(place_in_order(case.tokens.shape[1], n_logical, n_logical, size), case.tokens)
        yield Unpriced(
            f"experts.ep_{size}",
            f"over {size} GPUs, experts in their order, the busiest would get {busiest:.2f} × the mean tokens of a "
            f"layer (over {n_gpus} now {now:.2f} ×), but collectives take another time there, which no recording of "
            "this size holds",
            (f"a recording of expert parallelism over {size} GPUs",),
            "record some minutes of it, then dprankdiag compare BEFORE AFTER",
        )


def _find_busiest(placement: Placement, tokens: IntArray) -> float:
    """Give the busiest GPU's tokens over the mean of the GPUs, the mean of all passes and layers."""
    return float(spread_work(placement, tokens).share.max(axis=2).mean())


def list_redundant(n_logical: int, n_gpus: int) -> tuple[int, ...]:
    """List how many copies can be added so that all GPUs have as many slots."""
    fitting = [n for n in REDUNDANT if n <= n_logical and (n_logical + n) % n_gpus == 0]
    if len(fitting) > 1 or (fitting and fitting[0] > 0):
        return tuple(fitting)
    least = -n_logical % n_gpus
    return tuple(dict.fromkeys([*fitting, least or n_gpus, (least or n_gpus) + n_gpus]))


def _place(case: ExpertCase, tokens: IntArray, redundant: int, plan: ExpertPlan) -> Placement:
    n_slots = case.current.n_logical + redundant
    return place_experts(tokens.sum(axis=0), n_slots, case.current.n_gpus, plan.nodes, plan.groups)


def _save_in_all(
    case: ExpertCase,
    fits: Sequence[tuple[int, RecordedExperts, ExpertFit]],
    current: ExpertWork,
    other: ExpertWork,
) -> tuple[float, float, float]:
    """Sum over the kinds of step what a placement saves, as a share of all time, with its bounds."""
    sums = np.zeros(3)
    for steps, recorded, fit in fits:
        sums += steps * np.array(save_time(fit, recorded, current, other))
    value, low, high = (sums / case.wall_ns).tolist()
    return value, low, high


def _make_option(
    case: ExpertCase,
    saved: tuple[float, float, float],
    redundant: int,
    after: Placement,
    later: Placement | None,
    counts: ExpertCounts,
    plan: ExpertPlan,
    serving: Serving,
) -> Option:
    every = plan.steps_between or STEPS_BETWEEN.get(serving.engine or "", min(STEPS_BETWEEN.values()))
    cost, reasons = _cost_of_moves(case, after, later, every, plan)
    value, low, high = (bound - (cost or 0.0) for bound in saved)
    if later is None:
        few = "sums over time" if counts.is_summed else f"{len(case.tokens)} passes"
        reasons = (*reasons, f"{few} were counted: the gain is that of the tokens the placement was made from")
    copies = f"{redundant} redundant experts" if redundant else "no redundant expert"
    return Option(
        f"experts.redundant_{redundant}",
        "experts",
        f"experts placed by the counted tokens, {copies}",
        write_command(redundant, every, serving),
        Figure(value, (low, high)),
        "step_time",
        Service(),
        "replayed",
        reasons=reasons,
    )


def _cost_of_moves(
    case: ExpertCase, after: Placement, later: Placement | None, every: int, plan: ExpertPlan
) -> tuple[float | None, tuple[str, ...]]:
    """Give the share of the time that rearranging takes, or say what is needed to tell it.

    Where passes are many, a rearrangement goes from the placement by their first half to that by their second.
    """
    before = case.current if later is None else after
    to = after if later is None else later
    moves = count_moves(before, to, plan.expert_bytes or 1, plan.link_bytes_s or 1)
    experts = int(moves.received.sum())
    between = every * case.wall_ns / case.steps
    if plan.expert_bytes is None or plan.link_bytes_s is None:
        return None, (
            f"without the time to move the weights of {experts} experts every {every} steps: tell it with "
            "--expert-bytes and --link-gb-s",
        )
    cost = moves.least_ns / between
    moved = f"every {every} steps {format_bytes(moves.total_bytes)} move, which takes {format_ratio(cost)} of the time"
    return cost, (f"{moved} at least, and is taken off",)


def write_command(redundant: int, every: int, serving: Serving) -> str:
    """Write the flags of the engine that was seen, or of both."""
    sglang = f"--enable-eplb --ep-num-redundant-experts {redundant} --eplb-rebalance-num-iterations {every}"
    vllm = f'--enable-eplb --eplb-config \'{{"num_redundant_experts": {redundant}, "step_interval": {every}}}\''
    if serving.engine is None:
        return f"SGLang: {sglang}; vLLM: {vllm}"
    return sglang if serving.engine == "sglang" else vllm


def check_plan(plan: ExpertPlan, current: Placement) -> None:
    """Refuse a plan that no engine could follow.

    Raises:
        UsageError: with what divides by what.
    """
    if current.n_gpus % plan.nodes:
        raise UsageError(f"{current.n_gpus} GPUs do not divide by {plan.nodes} nodes", where="--nodes")
    if current.n_logical % plan.groups:
        raise UsageError(f"{current.n_logical} experts do not divide by {plan.groups} groups", where="--groups")
