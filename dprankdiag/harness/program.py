"""The operations of one step, in the order in which a rank's GPU runs them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

from dprankdiag.harness.world import World

StepKind = Literal["decode", "prefill", "mixed"]
Act = Literal["work", "meet", "copy", "clear"]
Scale = Literal["fixed", "rows", "context", "all_rows", "tokens"]
Stream = Literal["compute", "comm"]


@dataclass(frozen=True, slots=True)
class Operation:
    """One kernel or copy of every rank.

    Attributes:
        key: what it is; also the key of its kernel's name unless `name` says otherwise.
        act: own work; a meeting that ends after its last arrival; a copy between device and host; memory set to zero.
        scale: what its duration follows: nothing, the rank's own rows, its KV tokens, the rows of all ranks, the tokens
            routed to it.
        base_ns: duration at the mean load, of a meeting its transfer; 0 where another physics says it.
        memory_bound: limited by memory bandwidth at decode.
        among: who meets.
        moves_tokens: dispatch or combine: what a rank receives depends on the routing.
        layer: position of the layer; -1 before the first, number of layers after the last.
        in_graph: part of the captured graph of a decode step.
        host_waits: the host launches nothing further until it has ended.
        sent_by: for a meeting in two halves, how many operations before it the sending half lies.
        block: threads a block.
        stream: where it runs; a stream runs its operations in order.
        half: which half of the batch it works for; -1 for both.
        share: of the batch.
        waits_for: positions of the operations on other streams that must have ended.
    """

    key: str
    act: Act
    scale: Scale
    base_ns: int = 0
    memory_bound: bool = False
    among: Literal["world", "group"] = "world"
    moves_tokens: bool = False
    layer: int = -1
    in_graph: bool = True
    host_waits: bool = False
    sent_by: int = 0
    block: int = 256
    name: str = ""
    stream: Stream = "compute"
    half: int = -1
    share: float = 1.0
    waits_for: tuple[int, ...] = ()

    @property
    def kernel_key(self) -> str:
        """Name the entry of a name set."""
        return self.name or self.key


_MINOR = ("embedding", "kv_write", "attention_merge", "align", "activation", "dispatch_layout", "final_norm")


def list_operations(world: World, kind: StepKind) -> tuple[Operation, ...]:
    """List the operations of a step."""
    body = _interleave_halves(world) if world.two_batch_overlap else _list_layers(world)
    steps = [*_head(), *body, *_tail(world)]
    if world.lean:
        steps = [op for op in steps if op.key not in _MINOR]
    if kind == "prefill":
        steps = [_enlarge(op) for op in steps]
    if not world.graph or kind == "prefill":
        steps = [replace(op, in_graph=False) for op in steps]
    return connect_operations(steps)


def connect_operations(operations: list[Operation]) -> tuple[Operation, ...]:
    """Let operations wait for others across streams and halves, in the order in which they are listed."""
    return tuple(_connect(operations))


def _connect(operations: list[Operation]) -> Iterator[Operation]:
    """Find what each operation waits for: its half's last one, if that ran on another stream; where it was sent."""
    last: dict[int, int] = {}
    for position, op in enumerate(operations):
        own = last.get(op.half, last.get(-1))
        before = last.values() if op.half < 0 else () if own is None else (own,)
        elsewhere = [earlier for earlier in before if operations[earlier].stream != op.stream]
        sent_by = position - _find_sender(operations, position) if op.sent_by else 0
        yield replace(op, waits_for=(max(elsewhere),) if elsewhere else (), sent_by=sent_by)
        if op.half < 0:
            last.clear()
        last[op.half] = position


def _find_sender(operations: list[Operation], position: int) -> int:
    op = operations[position]
    senders = (at for at in range(position - 1, -1, -1) if operations[at].key == f"{op.key}_send")
    return next(at for at in senders if operations[at].half == op.half)


def _list_layers(world: World) -> Iterator[Operation]:
    for layer in range(world.layers):
        for op in _layer(world, layer):
            yield replace(op, stream="comm") if world.comm_stream and op.act == "meet" else op


def _interleave_halves(world: World) -> Iterator[Operation]:
    """Run the halves in turns, so that one computes while the other's collective is under way.

    Source: SGLang 0.5 two-batch overlap, `batch_overlap/operations_strategy.py`: each half yields after its
    attention and after its experts.
    """
    hook = world.communication == "deepep" and world.receive_hook
    pending: dict[int, Operation] = {}
    for layer in range(world.layers):
        halves = [[_halve(op, half) for op in _layer(world, layer)] for half in (0, 1)]
        meets = [at for at, op in enumerate(halves[0]) if op.act == "meet" and op.among == "world"]
        enter, leave = meets[0], meets[-1]
        for half, operations in enumerate(halves):
            if half in pending:
                yield pending.pop(half)
            yield from operations[:enter]
            if not hook:
                yield replace(operations[enter], stream="comm")
        for half, operations in enumerate(halves):
            if hook:
                yield operations[enter]
            yield from operations[enter + 1 : leave]
            if hook:
                pending[half] = operations[leave]
            else:
                yield replace(operations[leave], stream="comm")
    yield from pending.values()


def _halve(operation: Operation, half: int) -> Operation:
    """Let an operation work for half of the batch; half of a transfer takes more than half of its time."""
    base_ns = round(0.6 * operation.base_ns) if operation.act == "meet" else operation.base_ns
    return replace(operation, half=half, share=0.5, base_ns=base_ns)


def _head() -> Iterator[Operation]:
    yield Operation("input_copy", "copy", "fixed", 1_600, in_graph=False)
    yield Operation("embedding", "work", "rows", 2_800, memory_bound=True)


def _layer(world: World, layer: int) -> list[Operation]:
    clear = [Operation("clear", "clear", "fixed", 1_500)] if world.clears else []
    operations = [*clear, *_attention(world), *_experts(world)]
    return [replace(op, layer=layer) for op in operations]


def _attention(world: World) -> Iterator[Operation]:
    yield Operation("input_norm", "work", "rows", 3_500, block=1024)
    yield Operation("qkv_gemm", "work", "rows", 14_000, memory_bound=True, block=384)
    yield Operation("kv_write", "work", "rows", 2_600, memory_bound=True, block=128)
    yield Operation("attention", "work", "context", world.attention_ns, memory_bound=True)
    yield Operation("attention_merge", "work", "rows", 3_200, block=128)
    yield Operation("o_proj_gemm", "work", "rows", 12_000, memory_bound=True, block=384)
    if world.attention_tp > 1:
        custom = world.communication == "custom_all_reduce"
        name = f"custom_reduce_{world.attention_tp}" if custom else "attention_all_reduce"
        half = world.transfer_ns // 2
        yield Operation("attention_all_reduce", "meet", "fixed", half, among="group", block=512, name=name)


def _experts(world: World) -> Iterator[Operation]:
    if world.communication in ("nccl", "custom_all_reduce"):
        yield from _gathered_experts(world)
    elif world.communication == "deepep":
        yield from _dispatched_experts(world)
    else:
        yield from _normal_mode_experts(world)


def _gathered_experts(world: World) -> Iterator[Operation]:
    gather, scatter = "all_gather", "reduce_scatter"
    if world.communication == "custom_all_reduce":
        gather = scatter = f"custom_reduce_{world.ranks}"
    yield Operation("gather", "meet", "fixed", world.transfer_ns, block=512, name=gather)
    yield Operation("post_norm", "work", "all_rows", 4_200, block=1024)
    yield Operation("router", "work", "all_rows", 5_800)
    yield Operation("align", "work", "all_rows", 4_500, block=1024)
    yield from _expert_kernels(world)
    yield Operation("scatter", "meet", "fixed", world.transfer_ns + 2_000, block=512, name=scatter)


def _dispatched_experts(world: World) -> Iterator[Operation]:
    yield Operation("post_norm", "work", "rows", 4_200, block=1024)
    yield Operation("router", "work", "rows", 5_800)
    for key in ("dispatch", "combine"):
        meet = Operation(key, "meet", "fixed", world.transfer_ns, moves_tokens=True, block=1024)
        if world.receive_hook:
            yield Operation(f"{key}_send", "work", "rows", 4_000, block=1024, name=key)
            meet = replace(meet, sent_by=1)
        yield meet
        if key == "dispatch":
            yield from _expert_kernels(world)


def _normal_mode_experts(world: World) -> Iterator[Operation]:
    yield Operation("post_norm", "work", "rows", 4_200, block=1024)
    yield Operation("router", "work", "rows", 5_800)
    yield Operation("dispatch_layout", "work", "rows", 3_000)
    yield Operation("notify_dispatch", "meet", "fixed", 6_000, host_waits=True, block=128)
    yield Operation(
        "dispatch", "meet", "fixed", world.transfer_ns, moves_tokens=True, block=768, name="dispatch_normal"
    )
    yield from _expert_kernels(world)
    yield Operation("combine", "meet", "fixed", world.transfer_ns, moves_tokens=True, block=768, name="combine_normal")


def _expert_kernels(world: World) -> Iterator[Operation]:
    yield Operation("expert_up", "work", "tokens", round(0.6 * world.expert_ns), memory_bound=True, block=384)
    yield Operation("activation", "work", "tokens", 5_000, block=1024)
    yield Operation("expert_down", "work", "tokens", round(0.4 * world.expert_ns), memory_bound=True, block=384)


def _tail(world: World) -> Iterator[Operation]:
    after = world.layers
    yield Operation("final_norm", "work", "rows", 3_500, layer=after, block=1024)
    yield Operation("lm_head_gemm", "work", "rows", 42_000, memory_bound=True, layer=after, block=384)
    yield Operation("sample_softmax", "work", "rows", 9_000, layer=after, in_graph=False, block=1024)
    yield Operation("sample_pick", "work", "rows", 14_000, layer=after, in_graph=False, block=1024)
    yield Operation("output_copy", "copy", "fixed", 1_900, layer=after, in_graph=False)


def _enlarge(operation: Operation) -> Operation:
    """Turn a decode operation into that of a prompt chunk of some thousand rows."""
    growth = {"fixed": 6 if operation.act == "meet" else 1, "rows": 9, "context": 7, "all_rows": 9, "tokens": 6}
    if operation.key in ("lm_head_gemm", "sample_softmax", "sample_pick", "notify_dispatch"):
        return operation
    larger = replace(operation, base_ns=operation.base_ns * growth[operation.scale], memory_bound=False)
    return replace(larger, name="attention_prefill") if operation.key == "attention" else larger
