"""The faults that real runs plant, how large they are where, and who cannot plant or record which."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from dprankdiag.harness.faults import (
    Fault,
    fabric,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    load_prefill,
    load_requests,
    onset,
    slow_gpu,
    slow_link,
    window,
)
from dprankdiag.harness.run_plan import Plan

Executor = Literal["model", "nccl", "gloo", "sockets", "single-gpu"]
Format = Literal["nsys", "torch"]

EXECUTORS: tuple[Executor, ...] = get_args(Executor)
ON_GPU: tuple[Executor, ...] = ("nccl", "single-gpu")
WITH_TORCH: tuple[Executor, ...] = ("nccl", "gloo", "single-gpu")

MS = 1_000_000
STEPS = 60

FEWEST_RANKS = 4
"""So many that every culprit is there, and has peers."""


@dataclass(frozen=True, slots=True)
class Size:
    """How large a run is, and what a fault needs to be seen in it.

    Attributes:
        requests, context_tokens: per rank, and KV tokens per request.
        prompt_tokens: of the part of a prompt that one rank computes in every step.
        late_ns, stall_ns: of a host that is late in every step, or stops now and then.
    """

    layers: int
    requests: int
    context_tokens: int
    prompt_tokens: int
    late_ns: int
    stall_ns: int


ASLEEP = Size(layers=2, requests=16, context_tokens=2000, prompt_tokens=48, late_ns=40 * MS, stall_ns=250 * MS)
COMPUTED = Size(layers=8, requests=256, context_tokens=500, prompt_tokens=512, late_ns=10 * MS, stall_ns=80 * MS)
MODELLED = Size(layers=8, requests=16, context_tokens=2000, prompt_tokens=512, late_ns=450_000, stall_ns=4 * MS)
"""Steps of some 90 ms asleep, 28 ms on a GPU, and 2 ms in the model, whose kernels take what a large model's do."""

CONTENDED = "host_contended"


def size_run(executor: Executor) -> Size:
    """Give the size of an executor's runs."""
    return MODELLED if executor == "model" else COMPUTED if executor in ON_GPU else ASLEEP


def list_faults(size: Size) -> Mapping[str, Fault | None]:
    """List the faults by name."""
    return {
        "healthy": None,
        "long_context": load_context(2, 2.5),
        "long_context_onset": load_context(1, 3.0, when=onset(STEPS // 2)),
        "more_requests": load_requests(3, 2.5),
        "prefill_chunk": load_prefill(0, size.prompt_tokens),
        "host_late": host_late(1, size.late_ns),
        CONTENDED: host_late(1, 0),
        "host_burst": host_burst(3, stalls=5, stall_ns=size.stall_ns),
        "slow_gpu": slow_gpu(0, 2.0),
        "hot_expert": hot_expert(dict.fromkeys(range(size.layers), 3), 2.2),
        "slow_link": slow_link(2, 3),
        "fabric_window": fabric(4, when=window(20, 40)),
    }


FAULTS = tuple(list_faults(ASLEEP))
"""Names of the faults."""

_ONLY_SENT_ALIKE = "NCCL's ranks must all send alike, and a healthy link cannot be slowed by a program"
_NO_LAUNCHES = "its ranks launch nothing that could be held up"
_NOT_THE_COLLECTIVE = "torch records gloo's collective itself, and what is slept after it as time of the host"

_CANNOT: Mapping[tuple[Executor, str], str] = {
    ("nccl", "slow_link"): _ONLY_SENT_ALIKE,
    ("single-gpu", CONTENDED): "its threads share one interpreter, whose lock would hold up all ranks",
    ("gloo", CONTENDED): _NO_LAUNCHES,
    ("sockets", CONTENDED): _NO_LAUNCHES,
    ("model", CONTENDED): "its hosts share nothing to contend for",
}
"""Why an executor cannot plant a fault."""

_CANNOT_RECORD: Mapping[tuple[Executor, Format, str], str] = {
    ("gloo", "torch", "slow_link"): _NOT_THE_COLLECTIVE,
    ("gloo", "torch", "fabric_window"): _NOT_THE_COLLECTIVE,
}


def tell_obstacle(executor: Executor, format: Format, name: str) -> str:
    """Say why an executor cannot plant a fault or a format cannot show it; "" if nothing stands in the way."""
    return _CANNOT.get((executor, name), "") or _CANNOT_RECORD.get((executor, format, name), "")


def list_possible(executor: Executor, format: Format) -> tuple[str, ...]:
    """List the faults that an executor can plant and a format can show."""
    return tuple(name for name in FAULTS if not tell_obstacle(executor, format, name))


def plan_run(name: str, ranks: int, executor: Executor = "sockets") -> Plan:
    """Describe the run with a fault.

    Raises:
        ValueError: no such fault, or too few ranks for it.
    """
    size = size_run(executor)
    faults = list_faults(size)
    if name not in faults:
        raise ValueError(f"no fault '{name}'; there are {', '.join(faults)}")
    if ranks < FEWEST_RANKS:
        raise ValueError(f"{ranks} ranks; the faults need {FEWEST_RANKS} or more")
    return Plan(
        name,
        faults[name],
        ranks=ranks,
        steps=STEPS,
        layers=size.layers,
        requests=size.requests,
        context_tokens=size.context_tokens,
        contended=name == CONTENDED,
    )
