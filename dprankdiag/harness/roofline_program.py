"""The operations of a step as the roofline physics runs them; how long each takes is told by its key."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from dprankdiag.harness.program import Operation, StepKind, connect_operations
from dprankdiag.harness.roofline_presets import Model
from dprankdiag.harness.world import World

_MINOR = ("embedding", "attention_merge", "activation", "expert_sum", "final_norm")


def list_operations(world: World, model: Model, kind: StepKind, *, eager: bool) -> tuple[Operation, ...]:
    """List the operations of a step, as a graph's or each with a launch of its own."""
    layers = [
        replace(op, layer=layer, stream="comm" if world.comm_stream and op.act == "meet" else "compute")
        for layer in range(world.layers)
        for op in _layer(world, model, kind)
    ]
    tail = [replace(op, layer=world.layers) for op in _tail()]
    operations = [op for op in (*_head(), *layers, *tail) if not (world.lean and op.key in _MINOR)]
    return connect_operations([replace(op, in_graph=False) if eager else op for op in operations])


def _head() -> Iterator[Operation]:
    yield Operation("input_copy", "copy", "fixed", in_graph=False)
    yield Operation("embedding", "work", "rows")


def _layer(world: World, model: Model, kind: StepKind) -> Iterator[Operation]:
    if world.clears:
        yield Operation("clear", "clear", "fixed")
    yield Operation("input_norm", "work", "rows", block=512)
    yield Operation("qkv_gemm", "work", "rows", block=384)
    if model.query_rank:
        yield Operation("q_up_gemm", "work", "rows", block=384)
    yield Operation("kv_write", "work", "rows", block=128)
    if kind == "mixed":
        yield Operation("attention_prefill", "work", "rows", block=384)
    yield Operation("attention", "work", "context")
    yield Operation("attention_merge", "work", "rows", block=128)
    yield Operation("o_proj_gemm", "work", "rows", block=384)
    if world.attention_tp > 1:
        custom = world.communication == "custom_all_reduce"
        name = f"custom_reduce_{world.attention_tp}" if custom else "attention_all_reduce"
        yield Operation("attention_all_reduce", "meet", "fixed", among="group", block=512, name=name)
    yield from _exchange(world, model)


def _exchange(world: World, model: Model) -> Iterator[Operation]:
    """Bring the rows to their experts and back."""
    if world.communication in ("nccl", "custom_all_reduce"):
        custom = f"custom_reduce_{world.ranks}" if world.communication == "custom_all_reduce" else ""
        yield Operation("gather", "meet", "fixed", block=512, name=custom or "all_gather")
        yield from _route(model, "all_rows")
        yield Operation("align", "work", "all_rows", block=1024)
        yield from _experts()
        yield Operation("expert_sum", "work", "all_rows", block=512)
        yield Operation("scatter", "meet", "fixed", block=512, name=custom or "reduce_scatter")
        return
    yield from _route(model, "rows")
    if world.communication == "deepep":
        yield from _meet_half(world, "dispatch")
        yield from _experts()
        yield from _meet_half(world, "combine")
        return
    yield Operation("dispatch_layout", "work", "rows")
    yield Operation("notify_dispatch", "meet", "fixed", host_waits=True, block=128)
    yield Operation("dispatch", "meet", "fixed", moves_tokens=True, block=768, name="dispatch_normal")
    yield from _experts()
    yield Operation("combine", "meet", "fixed", moves_tokens=True, block=768, name="combine_normal")


def _route(model: Model, scale: str) -> Iterator[Operation]:
    rows = Operation("post_norm", "work", "all_rows" if scale == "all_rows" else "rows", block=512)
    yield rows
    yield replace(rows, key="router", block=256)
    if model.shared:
        yield replace(rows, key="shared_gemm", block=384)


def _meet_half(world: World, key: str) -> Iterator[Operation]:
    if world.receive_hook:
        yield Operation(f"{key}_send", "work", "rows", block=1024, name=key)
    sent_by = 1 if world.receive_hook else 0
    yield Operation(key, "meet", "fixed", moves_tokens=True, block=1024, sent_by=sent_by)


def _experts() -> Iterator[Operation]:
    yield Operation("expert_up", "work", "tokens", block=384)
    yield Operation("activation", "work", "tokens", block=1024)
    yield Operation("expert_down", "work", "tokens", block=384)


def _tail() -> Iterator[Operation]:
    yield Operation("final_norm", "work", "rows", block=512)
    yield Operation("lm_head_gemm", "work", "rows", block=384)
    yield Operation("sample_softmax", "work", "rows", in_graph=False, block=1024)
    yield Operation("sample_pick", "work", "rows", in_graph=False, block=1024)
    yield Operation("output_copy", "copy", "fixed", in_graph=False)
