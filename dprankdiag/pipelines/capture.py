"""Plan a trace of all ranks over the same steps. Nothing is asked of the profiler here: the user runs the lines.

Source: sglang 0.5.23 and vllm 0.33.0, profiling endpoints and file names; releases named where they differ.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dprankdiag.model.capture import CapturePlan, CaptureStep, CaptureWay
from dprankdiag.model.checkup import Checkup
from dprankdiag.model.ledgers import EngineName, Fact

_NSYS = (
    "nsys profile -t cuda,nvtx,osrt --cuda-graph-trace=node --trace-fork-before-exec=true"
    " --capture-range=cudaProfilerApi"
)
_EXPORT = (
    'for report in dprank-*.nsys-rep; do nsys export --type sqlite -o "${report%.nsys-rep}.sqlite" "$report"; done'
)


@dataclass(frozen=True, slots=True)
class CaptureOptions:
    """What the user chooses.

    Attributes:
        steps: forward passes to record.
        folder: where the engine's hosts put their traces.
        header: header that carries the token, or None.
        token: the shell's words for the token, such as `$KEY`; never the token itself.
    """

    steps: int = 30
    folder: str = "/tmp/dprank-traces"
    header: str | None = None
    token: str = ""


def plan_captures(checkups: Sequence[Checkup], options: CaptureOptions) -> tuple[CapturePlan, ...]:
    """Plan one capture for each engine; nodes and ports of one engine are one."""
    groups: dict[tuple[EngineName, str | None, Fact | None], list[Checkup]] = {}
    for checkup in checkups:
        if checkup.engine is not None:
            role = checkup.facts.get("disaggregation_mode")
            groups.setdefault((checkup.engine, checkup.model, role), []).append(checkup)
    engines = [members for group in groups.values() for members in _part_engines(group)]
    return tuple(_plan_one(members, options) for members in engines)


def _part_engines(group: Sequence[Checkup]) -> list[list[Checkup]]:
    """Part targets of one model into engines: ports of vLLM and nodes of SGLang are one, the head node first."""
    if group[0].engine == "vllm":
        return [list(group)]
    if not any((_read_count(member.facts, "nnodes") or 1) > 1 for member in group):
        return [[member] for member in group]
    return [sorted(group, key=lambda member: "nnodes" not in member.facts)]


def plan_assumed(engine: EngineName, targets: Sequence[str], options: CaptureOptions) -> CapturePlan:
    """Plan a capture of an engine that cannot be asked."""
    return _plan(engine, None, tuple(targets), {}, options, assumed=True)


def _plan_one(members: Sequence[Checkup], options: CaptureOptions) -> CapturePlan:
    first = members[0]
    targets = tuple(member.target for member in members)
    assert first.engine is not None
    return _plan(first.engine, first.version, targets, first.facts, options)


def _plan(
    engine: EngineName,
    version: str | None,
    targets: tuple[str, ...],
    facts: Mapping[str, Fact],
    options: CaptureOptions,
    *,
    assumed: bool = False,
) -> CapturePlan:
    nodes = _read_count(facts, "nnodes") or 1
    gpus = _count_gpus(engine, facts)
    make = _make_sglang_ways if engine == "sglang" else _make_vllm_ways
    return CapturePlan(engine, version, targets, nodes, gpus, make(version, targets, nodes, gpus, options), assumed)


def _count_gpus(engine: EngineName, facts: Mapping[str, Fact]) -> int | None:
    """Count the GPUs: with DP attention the ranks share those of the tensor-parallel group."""
    tensor, stages = _read_count(facts, "tp_size"), _read_count(facts, "pp_size") or 1
    if engine == "vllm":
        ranks = _read_count(facts, "data_parallel_size")
        tensor = _read_count(facts, "tensor_parallel_size") or tensor
        return None if ranks is None or tensor is None else ranks * tensor * stages
    if tensor is None:
        return None
    shared = "attn_dp_size" in facts or facts.get("enable_dp_attention") is True
    replicas = _read_count(facts, "dp_size") or 1
    return tensor * stages * (replicas if "attn_dp_size" in facts or not shared else 1)


def _read_count(facts: Mapping[str, Fact], name: str) -> int | None:
    value = facts.get(name)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _make_sglang_ways(
    version: str | None, targets: tuple[str, ...], nodes: int, gpus: int | None, options: CaptureOptions
) -> tuple[CaptureWay, ...]:
    start = f"{targets[0].rstrip('/')}/start_profile"
    body: dict[str, object] = {"output_dir": options.folder, "num_steps": options.steps, "activities": ["CPU", "GPU"]}
    body |= {"detailed_annotations": True} if _is_at_least(version, (0, 5, 19)) else {}
    torch_notes = (
        "One call reaches all ranks of the engine; it answers when their schedulers have heard it.",
        "Leave profile_by_stage off: with it each rank counts its own prefill and decode batches, so that ranks record"
        " different steps, and an idle rank records nothing.",
        "With an admin key set, only that key is let in here; else the API key is.",
    )
    torch_steps = (
        CaptureStep("Record, with traffic as usual", (_write_call(start, options, body),), torch_notes),
        _gather_torch(nodes, gpus, options, "-TP-<n>-DP-<n>.trace.json.gz"),
    )
    launch = f"{_NSYS} --capture-range-end=stop -o dprank-%h python3 -m sglang.launch_server <the same arguments>"
    nsys_steps = (
        CaptureStep(
            "Start the engine anew under Nsight Systems, on every node"
            if nodes > 1
            else "Start it under Nsight Systems",
            (f"SGLANG_ENABLE_NVTX_SCHEDULER=1 {launch}",),
            (
                "--cuda-graph-trace=node shows the kernels inside graphs; without it a decode step is one block.",
                "SGLANG_ENABLE_NVTX_SCHEDULER names the scheduler's stages (SGLang 0.5.14 or later, package nvtx).",
            ),
        ),
        CaptureStep(
            "Record, with traffic as usual and after the warm-up",
            (_write_call(start, options, {"num_steps": options.steps, "activities": ["CUDA_PROFILER"]}),),
            ("The first GPU of each node opens and closes the recording of its node.",),
        ),
        _gather_nsys(nodes, gpus),
    )
    return (
        CaptureWay("torch", "Torch profiler, without a restart", _TORCH_SHOWS, torch_steps),
        CaptureWay("nsys", "Nsight Systems, with a restart", _NSYS_SHOWS, nsys_steps),
    )


_TORCH_SHOWS = "kernels of every rank with their launch calls, batch annotations, groups and sizes of collectives"
_NSYS_SHOWS = "the same, with one clock a node, OS calls (what stalled a host) and scheduler stages"


def _make_vllm_ways(
    version: str | None, targets: tuple[str, ...], nodes: int, gpus: int | None, options: CaptureOptions
) -> tuple[CaptureWay, ...]:
    config = json.dumps({"profiler": "torch", "torch_profiler_dir": options.folder})
    older = version is not None and not _is_at_least(version, (0, 13))
    switch = (
        f"VLLM_TORCH_PROFILER_DIR={shlex.quote(options.folder)} vllm serve <the same arguments>"
        if older
        else f"vllm serve <the same arguments> --profiler-config {shlex.quote(config)}"
    )
    record = CaptureStep(
        "Record two seconds, with traffic as usual",
        tuple(_write_start_stop(targets, options)),
        (
            "Every port is called at once: a port reaches its own engines only.",
            "Each rank starts at its own step; analyze finds the steps that all have.",
            "Steps without requests of their own carry no annotation.",
        ),
    )
    cuda = "" if older else " --profiler-config.profiler cuda"
    launch = f"{_NSYS} --capture-range-end repeat -o dprank-%h vllm serve <the same arguments>{cuda}"
    return (
        CaptureWay(
            "torch",
            "Torch profiler, with a restart: the calls exist only where a profiler is configured",
            _TORCH_SHOWS,
            (
                CaptureStep("Start it with the profiler configured, on every node", (switch,)),
                record,
                _gather_torch(nodes, gpus, options, "rank<n>.<ns>.pt.trace.json.gz"),
            ),
        ),
        CaptureWay(
            "nsys",
            "Nsight Systems, with a restart",
            _NSYS_SHOWS,
            (
                CaptureStep(
                    "Start it under Nsight Systems, on every node",
                    (f"VLLM_WORKER_MULTIPROC_METHOD=spawn {launch}",),
                    ("--cuda-graph-trace=node shows the kernels inside graphs.",),
                ),
                record,
                _gather_nsys(nodes, gpus),
            ),
        ),
    )


def _gather_torch(nodes: int, gpus: int | None, options: CaptureOptions, names: str) -> CaptureStep:
    folder = shlex.quote(options.folder)
    fetch = ("mkdir -p traces",) + (
        (f'for host in <each node>; do rsync -a "$host:{options.folder}/" traces/; done',)
        if nodes > 1
        else (f"cp -r {folder}/. traces/",)
    )
    expected = "one for each GPU" if gpus is None else f"{gpus}, one for each GPU"
    return CaptureStep(
        "Bring the traces together and judge them",
        (*fetch, f"dprankdiag analyze traces/{_expect(gpus)}"),
        (f"Files to expect: {expected} ({names}), each on the node of its GPU. A missing one is a suspect.",),
    )


def _gather_nsys(nodes: int, gpus: int | None) -> CaptureStep:
    where = f"on each of the {nodes} nodes, then bring the .sqlite files together" if nodes > 1 else "here"
    return CaptureStep(
        f"Export ({where}) and judge",
        (_EXPORT, f"dprankdiag analyze dprank-*.sqlite{_expect(gpus)}"),
        ("One report a node, with all of its ranks inside.",),
    )


def _expect(gpus: int | None) -> str:
    return "" if gpus is None else f" --expect-ranks {gpus}"


def _write_call(url: str, options: CaptureOptions, body: Mapping[str, object] | None = None) -> str:
    parts = ["curl -fsS -X POST", shlex.quote(url), *_write_header(options)]
    if body is not None:
        parts += ["-H 'Content-Type: application/json'", f"-d {shlex.quote(json.dumps(body))}"]
    return " ".join(parts)


def _write_header(options: CaptureOptions) -> list[str]:
    if options.header is None:
        return []
    scheme = "Bearer " if options.header.lower() == "authorization" else ""
    return [f'-H "{options.header}: {scheme}{options.token}"']


def _write_start_stop(targets: Sequence[str], options: CaptureOptions) -> list[str]:
    lines = []
    for call in ("start_profile", "stop_profile"):
        calls = [_write_call(f"{target.rstrip('/')}/{call}", options) for target in targets]
        lines += calls if len(calls) == 1 else [*(f"{one} &" for one in calls), "wait"]
        lines += ["sleep 2"] if call == "start_profile" else []
    return lines


def _is_at_least(version: str | None, wanted: tuple[int, ...]) -> bool:
    """Compare a release by its leading numbers; an unknown one is taken for a new one."""
    if version is None:
        return True
    numbers = tuple(int(number) for number in re.findall(r"\d+", version.split("+")[0])[:3])
    return numbers >= wanted
