"""The ranges a program marks around its steps, as far as it marks any."""

from __future__ import annotations

import numpy as np

from dprankdiag.harness.durations import Batches
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
        told = [_batch_text(world, *counts) for counts in _list_counts(timeline.batches, rank)]
        kept = [step for step, text in enumerate(told) if text]
        batches = name([RangeText(told[step]) for step in kept])
        parts.append(RangeRows(begin[kept] + 800, end[kept], batches, nothing[kept]))
    return join_rows(RangeRows, parts)


def _list_counts(batches: Batches, rank: int) -> list[tuple[int, int, int, int, int]]:
    columns = (
        batches.decode_requests,
        batches.decode_tokens,
        batches.prompt_requests,
        batches.prompt_tokens,
        batches.prompt_context,
    )
    return list(zip(*(column[:, rank].tolist() for column in columns), strict=True))


def _batch_text(world: World, decoding: int, held: int, prompts: int, tokens: int, context: int) -> str:
    """Say what a batch is; vLLM says nothing of the dummy batch of a rank without work."""
    if world.names == "vllm":
        scheduled = decoding * world.verify_tokens
        return f"execute_context_{prompts}({tokens})_generation_{decoding}({scheduled})" if prompts + decoding else ""
    if prompts and decoding:
        both = f"bs={prompts + decoding} toks={tokens + decoding} c={prompts} g={decoding}"
        return f"step[MIXED {both} c_sk={context} g_sk={held}]"
    if prompts:
        return f"step[EXTEND bs={prompts} toks={tokens} c_sk={context}]"
    if decoding:
        return f"step[{'VERIFY' if world.verify_tokens > 1 else 'DECODE'} bs={decoding} g_sk={held}]"
    return "step[IDLE bs=0]"
