"""The operations of a step as the queueing physics runs them; how long each takes is told by its key.

Rows are normed before they are gathered, shared experts run on a rank's own rows, and prompts have attention of their
own beside that of decoders.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dprankdiag.harness.program import Operation, StepKind, connect_operations
from dprankdiag.harness.world import World

_LEFT_OUT = ("embedding", "kv_write", "attention_merge", "activation", "dispatch_layout", "final_norm")


def list_operations(world: World, kind: StepKind, *, eager: bool) -> tuple[Operation, ...]:
    """List the operations of a step, as a graph's or each with a launch of its own."""
    head = (
        Operation("input_copy", "copy", "fixed", in_graph=False),
        Operation("embedding", "work", "rows", block=128),
    )
    layers = (replace(op, layer=layer) for layer in range(world.layers) for op in _layer(world, kind))
    tail = (replace(op, layer=world.layers) for op in _tail())
    kept = [op for op in (*head, *layers, *tail) if not (world.lean and op.key in _LEFT_OUT)]
    if world.comm_stream:
        kept = [replace(op, stream="comm") if op.act == "meet" else op for op in kept]
    return connect_operations([replace(op, in_graph=False) if eager else op for op in kept])


def _layer(world: World, kind: StepKind) -> Iterator[Operation]:
    if world.clears:
        yield Operation("clear", "clear", "fixed")
    yield Operation("input_norm", "work", "rows", block=256)
    yield Operation("qkv_gemm", "work", "rows", block=128)
    yield Operation("kv_write", "work", "rows", block=256)
    yield Operation("attention", "work", "context", block=128)
    if kind == "mixed":
        yield Operation("attention_prefill", "work", "context", block=256)
    yield Operation("attention_merge", "work", "rows", block=256)
    yield Operation("o_proj_gemm", "work", "rows", block=128)
    custom = world.communication == "custom_all_reduce"
    if world.attention_tp > 1:
        name = f"custom_reduce_{world.attention_tp}" if custom else "attention_all_reduce"
        yield Operation("attention_all_reduce", "meet", "fixed", among="group", block=544, name=name)
    yield Operation("post_norm", "work", "rows", block=256)
    if world.communication in ("nccl", "custom_all_reduce"):
        yield Operation("shared_gemm", "work", "rows", block=128)
        shared = f"custom_reduce_{world.ranks}" if custom else ""
        yield Operation("gather", "meet", "fixed", block=544, name=shared or "all_gather")
        yield Operation("router", "work", "all_rows", block=512)
        yield Operation("align", "work", "all_rows", block=512)
        yield from _experts()
        yield Operation("expert_sum", "work", "all_rows", block=256)
        yield Operation("scatter", "meet", "fixed", block=544, name=shared or "reduce_scatter")
        return
    yield Operation("router", "work", "rows", block=512)
    if world.communication == "deepep":
        yield from _exchange(world, "dispatch")
        yield from _experts()
        yield from _exchange(world, "combine")
        yield Operation("shared_gemm", "work", "rows", block=128)
        return
    yield Operation("dispatch_layout", "work", "rows")
    yield Operation("notify_dispatch", "meet", "fixed", host_waits=True, block=256)
    yield Operation("dispatch", "meet", "fixed", moves_tokens=True, block=768, name="dispatch_normal")
    yield Operation("shared_gemm", "work", "rows", block=128)
    yield from _experts()
    yield Operation("combine", "meet", "fixed", moves_tokens=True, block=768, name="combine_normal")


def _exchange(world: World, key: str) -> Iterator[Operation]:
    if world.receive_hook:
        yield Operation(f"{key}_send", "work", "rows", block=1024, name=key)
    sent_by = 1 if world.receive_hook else 0
    yield Operation(key, "meet", "fixed", moves_tokens=True, block=1024, sent_by=sent_by)


def _experts() -> Iterator[Operation]:
    yield Operation("expert_up", "work", "tokens", block=128)
    yield Operation("activation", "work", "tokens", block=256)
    yield Operation("expert_down", "work", "tokens", block=128)


def _tail() -> Iterator[Operation]:
    yield Operation("final_norm", "work", "rows", block=256)
    yield Operation("lm_head_gemm", "work", "rows", block=128)
    yield Operation("sample_softmax", "work", "rows", in_graph=False, block=512)
    yield Operation("sample_pick", "work", "rows", in_graph=False, block=512)
    yield Operation("output_copy", "copy", "fixed", in_graph=False)
