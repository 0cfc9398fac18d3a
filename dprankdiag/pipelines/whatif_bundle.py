"""Ask a recording what would be if its load were even, a fault gone, or its experts elsewhere.

What is said of findings was replayed when the recording was diagnosed; the rest is computed from the means that a
bundle keeps of every kind of step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dprankdiag.analysis.statistics import FloatArray, draw_blocks
from dprankdiag.catalog.commands import Command, choose_command
from dprankdiag.errors import InputError
from dprankdiag.model.diagnosis import Diagnosis, Finding, Interval
from dprankdiag.model.expert_counts import ExpertCounts
from dprankdiag.model.results import COMPONENTS, WORK
from dprankdiag.model.schema import Columns
from dprankdiag.model.serving import UNKNOWN_SERVING, Serving
from dprankdiag.model.whatif import (
    UNKNOWN,
    Basis,
    Figure,
    Option,
    OptionKind,
    Origin,
    Service,
    Unpriced,
    Verdict,
    WhatIf,
)
from dprankdiag.pipelines.remedies import advise, find_serving
from dprankdiag.pipelines.sides import GroupSide, read_groups
from dprankdiag.pipelines.whatif_experts import ExpertPlan, price_experts
from dprankdiag.units import format_ratio

LEVEL = 0.9
DRAWS = 200
DAY_H = 24.0

_LATENT = ("mla", "flashmla")
"""In names of attention kernels that read one latent cache for all heads."""


@dataclass(frozen=True, slots=True, eq=False)
class Recorded:
    """What a bundle keeps of the group that most of its time belongs to.

    Attributes:
        number: of the group.
        hours_day: GPU-hours a day in steps; None if unknown.
    """

    diagnosis: Diagnosis
    tables: Mapping[str, Columns]
    side: GroupSide
    number: int
    serving: Serving
    hours_day: float | None


def ask_bundle(
    diagnosis: Diagnosis,
    tables: Mapping[str, Columns],
    paths: Sequence[str],
    counts: ExpertCounts | None = None,
    plan: ExpertPlan | None = None,
    said: Serving = UNKNOWN_SERVING,
) -> WhatIf:
    """Price every option that a recording tells of.

    Args:
        paths: as given, for messages and as where it came from.
        counts: tokens by expert, counted at the same time.
        plan: what rearranging experts costs.
        said: what the user says of the engine, before what the recording shows.

    Raises:
        UsageError: a plan that does not divide.
        InputError: the bundle lacks tables, because an earlier version saved it, or holds no steps.
    """
    sides = read_groups(tables, ", ".join(paths))
    if not sides:
        what = "holds no steps whose time could be another"
        raise InputError(what, where=", ".join(paths), mend="give a trace or a bundle of one, or a request log")
    number = int(np.argmax([float(side.measured_ns.sum()) for side in sides]))
    side = sides[number]
    seen = find_serving(diagnosis, side.engine)
    serving = Serving(said.engine or seen.engine, said.release or seen.release)
    diagnosis = advise(diagnosis, serving)
    recorded = Recorded(diagnosis, tables, side, number, serving, _find_hours(diagnosis, side))
    options = [*_price_findings(recorded), *_price_load(recorded)]
    layouts, unpriced = _price_layouts(recorded)
    experts, untold = price_experts(tables, number, counts, plan or ExpertPlan(), serving)
    options += [*layouts, *(_add_hours(option, recorded) for option in experts)]
    notes = counts.notes if counts is not None else ()
    if len(sides) > 1:
        notes = (*notes, f"of {len(sides)} lockstep groups, the one of engine {side.engine} with most time is told of")
    open_questions = (*_list_unpriced(recorded), *unpriced, *untold)
    return _conclude(recorded, paths, options, open_questions, notes)


def _find_hours(diagnosis: Diagnosis, side: GroupSide) -> float | None:
    """Give the GPU-hours a day that are spent in steps, as in the recording."""
    start, end = diagnosis.time.start_ns, diagnosis.time.end_ns
    if start is None or end is None or end <= start:
        return None
    busy = min(float(side.measured_ns.sum()) / (end - start), 1.0)
    return len(side.ranks) * DAY_H * busy


def _price_findings(recorded: Recorded) -> Iterator[Option]:
    """Take each finding away, and all of them together."""
    side, found = recorded.side, []
    for number, finding in enumerate(recorded.diagnosis.findings, 1):
        loss = side.losses.get(number)
        if loss is None or not side.trusted or finding.lost_ratio is None:
            continue
        kind: OptionKind = "load" if finding.cause.startswith("load.") else "fault"
        basis: Basis = "bound" if finding.basis == "bound" else "replayed"
        gain = Figure(finding.lost_ratio, finding.interval)
        found.append(finding)
        command = next((item.command for item in finding.remedies if item.gain_ratio is not None), None)
        title = f"without {finding.cause}{_name_ranks(finding)}"
        key = f"{kind}.{finding.id}"
        yield _make_option(recorded, key, kind, title, command, gain, basis, side.measured_ns - loss.lost_ns)
    if len(found) > 1:
        taken = float((side.measured_ns - side.balanced_ns).sum()) / float(side.measured_ns.sum())
        lost = recorded.diagnosis.lost
        gain = Figure(taken, lost.interval if lost.ratio is not None else None)
        yield _make_option(recorded, "fault.all", "fault", "without any of the findings", None, gain, "replayed",
                           side.balanced_ns)  # fmt: skip


def _name_ranks(finding: Finding) -> str:
    if not finding.ranks:
        return ""
    noun = "rank" if len(finding.ranks) == 1 else "ranks"
    return f" on {noun} {', '.join(str(rank) for rank in finding.ranks)}"


def _make_option(
    recorded: Recorded,
    key: str,
    kind: OptionKind,
    title: str,
    command: str | None,
    gain: Figure,
    basis: Basis,
    walls: FloatArray | None = None,
) -> Option:
    served = Service() if walls is None else _tell_steps(walls)
    option = Option(key, kind, title, command, gain, "step_time", served, basis)
    return _add_hours(option, recorded)


def _bound(most: float) -> Figure:
    """Say that a gain is no more than a bound; how much it is nobody knows."""
    return Figure(None, (0.0, most))


def _add_hours(option: Option, recorded: Recorded) -> Option:
    """Add the GPU-hours that are left if the time saved is given back."""
    hours, gain = recorded.hours_day, option.gain_ratio
    if hours is None:
        return option
    bounds: Interval | None = None
    if gain.interval is not None:
        bounds = (hours * (1 - gain.interval[1]), hours * (1 - gain.interval[0]))
    left = Figure(None if gain.value is None else hours * (1 - gain.value), bounds)
    return replace(option, served=replace(option.served, gpu_hours_day=left))


def _tell_steps(walls: FloatArray) -> Service:
    """Tell the median and the slow steps, with intervals by drawing blocks of steps anew."""
    drawn = walls[draw_blocks(len(walls), DRAWS)]

    def figure(percent: float) -> Figure:
        value = float(np.percentile(walls, percent))
        low, high = np.quantile(np.percentile(drawn, percent, axis=1), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return Figure(value, (min(float(low), value), max(float(high), value)))

    return Service(step_p50_ns=figure(50), step_p99_ns=figure(99))


def _price_load(recorded: Recorded) -> Iterator[Option]:
    """Spread attention evenly in every single step, which no router can: a bound of what routing can gain."""
    parts = _read_steps(recorded)
    if parts is None or recorded.side.team > 1:
        return
    attention, rest = parts
    speed = _find_slowness(recorded)
    work = attention / speed
    even = work.mean(axis=1, keepdims=True) * speed
    saved = (rest + attention).max(axis=1) - (rest + even).max(axis=1)
    gain = max(float(saved.sum()), 0.0) / float(recorded.side.measured_ns.sum())
    yield _make_option(
        recorded, "load.even_steps", "load", "attention spread evenly in every step, as no router can", None,
        _bound(gain), "bound",
    )  # fmt: skip


def _read_steps(recorded: Recorded) -> tuple[FloatArray, FloatArray] | None:
    """Read attention and the rest of what ranks do before the gather, `(n_steps, n_ranks)` each; None without any."""
    attention, rest = np.zeros_like(recorded.side.busy_ns), np.zeros_like(recorded.side.busy_ns)
    rows = _of_group(recorded, "rank_steps")
    column = np.searchsorted(np.unique(rows["rank"]), rows["rank"])
    attention[rows["step"], column] = rows["attention_ns"]
    if not attention.any():
        return None
    walls = _of_group(recorded, "step_walls")
    for kind in np.unique(walls["kind"]).tolist():
        layers = _read_layers(recorded, kind)
        before = [values[layers["is_before"]].sum(axis=0) for name, values in layers.items() if name in WORK]
        rest[walls["kind"] == kind] = np.sum(before, axis=0) - layers["attention"][layers["is_before"]].sum(axis=0)
    return attention, rest


def _of_group(recorded: Recorded, name: str) -> Columns:
    table = recorded.tables[name]
    mine = table["group"] == recorded.number
    return {column: values[mine] for column, values in table.items()}


def _read_layers(recorded: Recorded, kind: int) -> dict[str, FloatArray]:
    """Read a kind of step's means, `(n_positions, n_ranks)` each, and which positions lie before a gather."""
    layers, positions = _of_group(recorded, "layers"), _of_group(recorded, "positions")
    mine = layers["kind"] == kind
    n_positions = int(layers["position"][mine].max()) + 1
    names = (*COMPONENTS, "wait", "transfer")
    read = {name: layers[f"{name}_ns"][mine].reshape(n_positions, -1).astype(np.float64) for name in names}
    side = positions["side"][positions["kind"] == kind]
    return read | {"is_before": np.isin(side, ["pre", "both"])}


def _find_slowness(recorded: Recorded) -> FloatArray:
    """Give how much longer each rank takes for equal work, `(n_ranks,)`; 1 where nothing shows it."""
    probe = recorded.side.probe_ns.sum(axis=0)
    if not (probe > 0).all():
        return np.ones(len(probe))
    return np.asarray(probe / np.median(probe))


def _price_layouts(recorded: Recorded) -> tuple[list[Option], list[Unpriced]]:
    """Bound what sharing attention between two GPUs could gain; other layouts run other collectives."""
    other = Unpriced(
        "layout",
        "another size of expert parallelism runs other collectives and other shapes, whose times were not recorded",
        ("a recording of that layout",),
        "serve a copy with it and: dprankdiag compare BEFORE AFTER",
    )
    key, n_ranks = "layout.attention_tp_2", len(recorded.side.ranks)
    why = None
    names = [name for (name, _), kernel in recorded.side.kernels.items() if kernel.family == "attention"]
    if recorded.side.team > 1 or n_ranks % 2:
        why = "attention is shared already" if recorded.side.team > 1 else f"{n_ranks} ranks do not pair"
    elif not names:
        why = "no attention kernels were seen"
    elif any(mark in name.lower() for name in names for mark in _LATENT):
        why = "its attention reads one latent cache for all heads, which two GPUs would both read in full"
    if why is not None:
        return [], [Unpriced(key, why), other]
    saved = sum(steps * _share_attention(recorded, kind) for kind, steps in _list_kinds(recorded))
    gain = max(saved, 0.0) / float(recorded.side.measured_ns.sum())
    command = choose_command(_list_layout_commands(n_ranks), recorded.serving)
    title = "attention of two neighbours shared between them, without the time of the collectives that this adds"
    return [_make_option(recorded, key, "layout", title, command, _bound(gain), "bound")], [other]


def _list_layout_commands(n_ranks: int) -> tuple[Command, ...]:
    """List what halves the DP ranks over the same GPUs.

    Source: sglang 0.5.22 names DP attention's size `attn_dp_size`; vLLM 0.33.0 engine arguments.
    """
    half = n_ranks // 2
    source = "names of sizes by release"
    return (
        Command("sglang", f"--tp-size {n_ranks} --attn-dp-size {half}", source, since="0.5.22"),
        Command("sglang", f"--tp-size {n_ranks} --dp-size {half} --enable-dp-attention", source, until="0.5.22"),
        Command("vllm", f"--data-parallel-size {half} --tensor-parallel-size 2", source),
    )


def _list_kinds(recorded: Recorded) -> list[tuple[int, int]]:
    kinds = _of_group(recorded, "kinds")
    return list(zip(kinds["kind"].tolist(), kinds["steps"].tolist(), strict=True))


def _share_attention(recorded: Recorded, kind: int) -> float:
    """Give what a step of a kind saves if neighbours share their attention, ns."""
    layers = _read_layers(recorded, kind)
    segment = np.sum([layers[name] for name in COMPONENTS], axis=0)
    attention = layers["attention"]
    paired = np.repeat(attention.reshape(len(attention), -1, 2).mean(axis=2), 2, axis=1)
    return float((segment.max(axis=1) - (segment - attention + paired).max(axis=1)).sum())


def _list_unpriced(recorded: Recorded) -> Iterator[Unpriced]:
    for number, finding in enumerate(recorded.diagnosis.findings, 1):
        if finding.engine != recorded.side.engine:
            continue
        if number in recorded.side.losses and recorded.side.trusted and finding.lost_ratio is not None:
            continue
        kind = "load" if finding.cause.startswith("load.") else "fault"
        why = next((item.why_no_gain for item in finding.remedies if item.why_no_gain), None)
        yield Unpriced(f"{kind}.{finding.id}", why or "what it costs could not be computed from this input")
    if not recorded.side.trusted:
        error = recorded.diagnosis.time.replay_error_ratio
        told = f", by {format_ratio(error)}" if error is not None else ""
        yield Unpriced("gain_ratio", f"steps predicted from their neighbours miss the recorded ones{told}")


def _measure(recorded: Recorded) -> Service:
    side = recorded.side
    waits = _of_group(recorded, "rank_steps")["wait_ns"].sum()
    told = _tell_steps(side.measured_ns)
    hours = UNKNOWN if recorded.hours_day is None else Figure(recorded.hours_day)
    return replace(
        told,
        imbalance_ratio=_measure_imbalance(recorded),
        waiting_ratio=Figure(float(waits) / (len(side.ranks) * float(side.measured_ns.sum()))),
        gpu_hours_day=hours,
    )


def _measure_imbalance(recorded: Recorded) -> Figure:
    busy = np.zeros(len(recorded.side.ranks))
    for kind, steps in _list_kinds(recorded):
        layers = _read_layers(recorded, kind)
        busy += steps * np.sum([layers[name][layers["is_before"]].sum(axis=0) for name in WORK], axis=0)
    return Figure(float(busy.max() / busy.mean())) if busy.any() else UNKNOWN


def _conclude(
    recorded: Recorded,
    paths: Sequence[str],
    options: Sequence[Option],
    unpriced: tuple[Unpriced, ...],
    notes: tuple[str, ...],
) -> WhatIf:
    """Order the options by gain; the best are those that can be had, not bounds nor all findings together."""
    ordered = sorted(options, key=lambda item: (item.basis == "bound", -(item.gain_ratio.value or 0.0), item.key))
    real = [item for item in ordered if item.basis != "bound" and item.key != "fault.all" and _gains(item)]
    best = [item for item in real if _is_tied(item, real[0])]
    tied = {item.key: tuple(other.key for other in best if other is not item) for item in best}
    verdict: Verdict = "tied" if len(best) > 1 else "better" if best else "none_better" if options else "cannot_tell"
    diagnosis = recorded.diagnosis
    start, end = diagnosis.time.start_ns, diagnosis.time.end_ns
    origin = Origin(
        tuple(paths),
        "bundle",
        recorded.serving.engine,
        recorded.serving.release,
        workers=1,
        ranks=len(recorded.side.ranks) // recorded.side.team,
        gpus=len(recorded.side.ranks),
        span_ns=None if start is None or end is None else end - start,
    )
    return WhatIf(
        verdict,
        _write_headline(best, options),
        origin,
        _measure(recorded),
        None,
        tuple(item.key for item in best),
        tuple(replace(item, tied_with=tied.get(item.key, ())) for item in ordered),
        None,
        unpriced,
        notes,
        LEVEL,
    )


def _gains(option: Option) -> bool:
    return option.gain_ratio.interval is not None and option.gain_ratio.interval[0] > 0


def _is_tied(option: Option, first: Option) -> bool:
    """Tell whether two gains cannot be told apart by their intervals."""
    mine, its = option.gain_ratio.interval, first.gain_ratio.interval
    return mine is not None and its is not None and mine[1] >= its[0]


def _write_headline(best: Sequence[Option], options: Sequence[Option]) -> str:
    if not options:
        return "No gain can be given: the recording holds nothing that could be otherwise and be priced"
    if not best:
        return "Nothing that was priced would shorten the recorded steps, beyond what the recording is sure of"
    first = best[0]
    low, high = first.gain_ratio.interval or (0.0, 0.0)
    saved = f"{format_ratio(first.gain_ratio.value)} of the step ({format_ratio(low)} to {format_ratio(high)})"
    more = f"; {len(best) - 1} more may do as well" if len(best) > 1 else ""
    return f"{first.title[:1].upper()}{first.title[1:]}: saves {saved}{more}"
