"""What a physics computes of a world before it is played: who has which batch, and how long everything takes."""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.harness.events import Array
from dprankdiag.harness.program import Operation, StepKind


@dataclass(frozen=True, slots=True)
class Batches:
    """What every rank works on in every step: `(steps, ranks)` each; the ranks of an attention group share theirs.

    Attributes:
        decode_requests: requests that decode.
        decode_tokens: sum of their KV lengths.
        prompt_requests: requests of which a part of the prompt is computed.
        prompt_tokens: tokens of those parts.
        prompt_context: sum of these requests' KV lengths, the computed part included.
    """

    decode_requests: Array
    decode_tokens: Array
    prompt_requests: Array
    prompt_tokens: Array
    prompt_context: Array


@dataclass(frozen=True, slots=True)
class Lane:
    """All steps of one kind: which they are, what they run, how long it takes.

    Attributes:
        steps: `(n,)` positions of the steps in the world.
        work_ns: `(n, operations, ranks)` durations; of meetings, how late after arrival and transfer a member leaves.
        transfer_ns: `(n, operations, ranks)` of meetings, or `(n, operations, 1)` where all members share one.
        gap_ns: `(n, operations, ranks)` idle between an operation and the one before it on its stream.
        call_ns: `(n, operations, ranks)` duration of the call that launches an operation; of the first of a graph, of
            the graph's launch.
        blocks: `(n, operations, ranks)` size of the kernels' grids.
        present: `(n, operations, ranks)` bool, which ranks launch the operation; None if all do. Meetings, copies and
            whatever is part of a graph are there on every rank.
    """

    kind: StepKind
    operations: tuple[Operation, ...]
    steps: Array
    work_ns: Array
    transfer_ns: Array
    gap_ns: Array
    call_ns: Array
    blocks: Array
    present: Array | None = None


@dataclass(frozen=True, slots=True)
class HostCosts:
    """What the hosts spend around and between their launch calls.

    Attributes:
        gap_ns: `(steps, ranks)` work between two steps.
        metadata_ns: `(steps, ranks)` time from the last host's arrival at the metadata gather to leaving it.
        prepare_ns: from there to the first launch call.
        between_calls_ns: from the end of a launch call to the next one.
        launch_ns: from the end of a launch call to the earliest start of its kernel.
        react_ns: from the end of what the host waits for to its going on.
        dependent_lead_ns: how much earlier a dependent kernel starts.
    """

    gap_ns: Array
    metadata_ns: Array
    prepare_ns: int
    between_calls_ns: int
    launch_ns: int
    react_ns: int
    dependent_lead_ns: int


@dataclass(frozen=True, slots=True)
class Durations:
    """All that is needed to play a world.

    Attributes:
        hidden: elements of a row of activations.
    """

    lanes: tuple[Lane, ...]
    hosts: HostCosts
    batches: Batches
    hidden: int
