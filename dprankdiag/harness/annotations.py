"""The ranges a program marks around its steps, as far as it marks any."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.events import NO_VALUE, RangeRows, RangeText, empty_rows, join_rows
from dprankdiag.harness.timeline import Timeline
from dprankdiag.harness.world import World

_DOMAINS = {"sglang": "sglang", "vllm": "vllm", "invented": "app"}


def annotate_steps(timeline: Timeline) -> tuple[tuple[RangeText, ...], list[RangeRows]]:
    """Mark the steps of every rank: the texts, and one set of rows a rank.

    A step is a `decode_step` or `prefill_step` range with its number as payload, from the first launch to the result;
    the hosts' metadata gather is a range too. With annotations "batch" an inner range tells the batch, if the
    engine is one that does: rows (vLLM), rows and KV tokens (SGLang).

    Source: vLLM 0.33.0 worker ranges `execute_context_…_generation_…`; SGLang 0.5.23 step spans with `g_sk=`, the
    sum of KV lengths.
    """
    world = timeline.world
    texts: dict[RangeText, int] = {}
    if world.annotations == "none":
        return (), [empty_rows(RangeRows) for _ in range(world.ranks)]
    kinds = _step_kinds(timeline)
    rows = [_annotate_rank(timeline, rank, kinds, texts) for rank in range(world.ranks)]
    return tuple(texts), rows


def _step_kinds(timeline: Timeline) -> list[str]:
    kinds = [""] * timeline.world.run_steps
    for lane in timeline.lanes:
        for step in lane.steps:
            kinds[int(step)] = lane.kind
    return kinds


def _annotate_rank(timeline: Timeline, rank: int, kinds: list[str], texts: dict[RangeText, int]) -> RangeRows:
    world, hosts = timeline.world, timeline.hosts
    domain = _DOMAINS[world.names]
    number = np.arange(world.run_steps)

    def name(found: list[RangeText]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.asarray([texts.setdefault(text, len(texts)) for text in found], np.int64)

    begin, end = hosts.launch_start_ns[:, rank], hosts.sync_end_ns[:, rank]
    parts = [RangeRows(begin, end + 1_500, name([RangeText(f"{kind}_step", domain) for kind in kinds]), number)]
    nothing = np.full(world.run_steps, NO_VALUE)
    if world.metadata_gather:
        gather = name([RangeText("gloo:all_gather", domain)] * world.run_steps)
        parts.append(RangeRows(hosts.gather_start_ns[:, rank], hosts.gather_end_ns[:, rank], gather, nothing))
    if world.annotations == "batch" and world.names != "invented":
        batches = [RangeText(text) for text in _batch_texts(timeline, rank, kinds)]
        parts.append(RangeRows(begin + 800, end, name(batches), nothing))
    return join_rows(RangeRows, parts)


def _batch_texts(timeline: Timeline, rank: int, kinds: list[str]) -> list[str]:
    world, loads = timeline.world, timeline.loads
    requests = np.rint(loads.rows[:, rank] * world.requests).astype(int)
    tokens = np.rint(loads.context[:, rank] * world.requests * world.context_tokens).astype(int)
    return [
        _batch_text(world, kind, int(rows), int(held)) for kind, rows, held in zip(kinds, requests, tokens, strict=True)
    ]


def _batch_text(world: World, kind: str, rows: int, tokens: int) -> str:
    if world.names == "vllm":
        if kind == "prefill":
            return f"execute_context_{rows}({rows * 64})_generation_0(0)"
        return f"execute_context_0(0)_generation_{rows}({rows})"
    if kind == "prefill":
        return f"step[EXTEND bs={rows} toks={rows * 64} c_sk={tokens}]"
    return f"step[DECODE bs={rows} g_sk={tokens}]"
