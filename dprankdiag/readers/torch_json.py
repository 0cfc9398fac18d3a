"""Read a torch profiler trace (kineto's Chrome JSON, plain or gzip) into a `Reading`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dprankdiag.errors import DamagedInput
from dprankdiag.model.ranks import RankClaim
from dprankdiag.model.schema import count_rows
from dprankdiag.model.sources import Actor, Capture, Reading, Session, Source
from dprankdiag.model.traces import TRACE_TABLES
from dprankdiag.readers.rank_evidence import read_file_name, read_title, read_torch_label, read_torch_name
from dprankdiag.readers.sniff import TORCH_JSON, is_kind
from dprankdiag.readers.torch_columns import NO_SHAPE, Process, TorchCollector, TorchTables
from dprankdiag.readers.torch_stream import TorchTrace

_EPOCH_US = 10**15
"""Times beyond this many µs (2001) count from the epoch where no base is given."""

_SWITCHES = ("with_stack", "record_shapes", "profile_memory", "with_flops", "with_modules")
_OLD_BASE_KEYS = ("baseTimeNanoseconds", "baseTimeNanosecond")


class TorchJsonReader:
    """Reads traces of the torch profiler."""

    kind = TORCH_JSON

    def can_read(self, path: Path) -> bool:
        """Say whether the file is such a trace."""
        return is_kind(path, self.kind)

    def read(self, path: Path) -> Reading:
        """Read one trace."""
        return read(path)


def read(path: Path) -> Reading:
    """Read one trace: kernels, copies, calls, ranges, synchronisations, messages, and the evidence of its rank.

    Events that are no JSON are left out and counted; a file that breaks off keeps what came before. The source is then
    "partial".

    Raises:
        DamagedInput: it holds no events, or several processes wrote into it at once.
    """
    trace = TorchTrace(path)
    collector = TorchCollector()
    try:
        for events in trace.batches():
            collector.add(events)
    except RecursionError as error:
        raise DamagedInput("JSON nested beyond all measure", where=str(path), mend="record again") from error
    found = collector.finish()
    _refuse_mixture(trace, found)
    _refuse_nothing(trace, found)
    info = trace.header.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    tables = {table.name: found.tables.get(table.name, table.empty()) for table in TRACE_TABLES}
    world = _whole(info.get("world_size"))
    capture = Capture(
        graph_mode="node" if bool(tables["kernels"]["in_graph"].any()) else None,
        expected_ranks=world,
        options=_read_options(trace.header, found),
    )
    source = _describe_source(trace, found, info)
    return Reading(
        source, _read_session(trace.header, found), capture, _describe_actors(path, found, info), found.names, tables
    )


def _refuse_mixture(trace: TorchTrace, found: TorchTables) -> None:
    """Refuse a broken file in which several processes wrote: whose events are missing cannot be known."""
    busy = [process for process in found.processes.get("", ()) if process.calls]
    if trace.broken and len(busy) > 1:
        pids = ", ".join(str(process.pid) for process in busy[:4])
        raise DamagedInput(
            f"broken JSON with the events of several processes ({pids}): they wrote to one path at once",
            where=str(trace.path),
            mend="record again with a path of its own for each rank",
        )


def _refuse_nothing(trace: TorchTrace, found: TorchTables) -> None:
    """Refuse a trace without anything that a process or GPU did, such as one of another program."""
    if not found.processes and not found.actors:
        raise DamagedInput(
            "a torch profiler trace without kernels, calls or annotations",
            where=str(trace.path),
            mend="record with torch.profiler activities CPU and CUDA (SGLang: CPU, GPU)",
        )


def _describe_actors(path: Path, found: TorchTables, info: dict[str, Any]) -> tuple[Actor, ...]:
    devices = [label for label, _ in found.actors]
    actors = []
    for label, device in found.actors:
        processes = found.processes.get(label, [])
        process = processes[0] if processes else None
        claims: list[RankClaim | None] = []
        if devices.count(label) == 1:
            claims += [
                read_title(name, "process-name", may_be_cut=False) for name in (process.names if process else ())
            ]
            if label:
                claims.append(read_torch_label(label))
            else:
                claims.append(_claim_info(info))
                claims += [read_torch_name(path.name) or read_file_name(path.name)]
        actors.append(
            Actor(
                pid=process.pid if process else 0,
                device=device if device >= 0 else None,
                process=_name_process(process),
                gpu=None,
                claims=tuple(sorted((claim for claim in claims if claim), key=_strength)),
            )
        )
    return tuple(actors)


def _strength(claim: RankClaim) -> int:
    return ("distributed-info", "process-name", "trace-label", "file-name").index(claim.source)


def _name_process(process: Process | None) -> str | None:
    return max(process.names, key=len, default=None) if process else None


def _claim_info(info: dict[str, Any]) -> RankClaim | None:
    rank, world = _whole(info.get("rank")), _whole(info.get("world_size"))
    if rank is None or (world is not None and not 0 <= rank < world):
        return None
    text = f"distributedInfo says rank {rank}" + (f" of {world}" if world is not None else "")
    return RankClaim("distributed-info", "sure" if world is not None else "likely", rank, text, world=world)


def _read_session(header: dict[str, Any], found: TorchTables) -> Session:
    """Place the trace on UTC: times count from `baseTimeNanoseconds`, in older traces from the epoch.

    Source: libkineto/src/output_json.cpp of pytorch/kineto (times relative to ChromeTraceBaseTime).
    """
    base = next((number for key in _OLD_BASE_KEYS if (number := _whole(header.get(key))) is not None), None)
    if base is None and found.start_ns >= _EPOCH_US * 1000:
        base = 0
    return Session(
        host=None,
        utc_start_ns=base,
        system_clock_ns=None,
        start_ns=found.start_ns,
        end_ns=found.end_ns,
        is_utc=base == 0,
    )


def _read_options(header: dict[str, Any], found: TorchTables) -> dict[str, str]:
    options = {name: str(header.get(name, 0)) for name in _SWITCHES}
    return options | {"python_frames": str(int(found.has_stacks))}


def _describe_source(trace: TorchTrace, found: TorchTables, info: dict[str, Any]) -> Source:
    kernels = found.tables["kernels"]
    lacked = [] if count_rows(kernels) else ["KERNEL"]
    if not any(process.calls for processes in found.processes.values() for process in processes):
        lacked.append("RUNTIME")
    if not count_rows(found.tables["ranges"]):
        lacked.append("user annotations")
    if not info:
        lacked.append("distributedInfo")
    if found.graphs_without_kernels:
        lacked.append("kernels of graph replays")
    return Source(
        path=str(trace.path),
        kind=TORCH_JSON,
        status="partial" if trace.damage or trace.broken else "used" if found.actors else "unused",
        producer=_name_producer(trace.header),
        kernels=found.kernels,
        lacked=tuple(lacked),
        warnings=tuple(_warn(trace, found)),
    )


def _name_producer(header: dict[str, Any]) -> str | None:
    schema = header.get("schemaVersion")
    return None if schema is None else f"kineto schema {schema}"


def _warn(trace: TorchTrace, found: TorchTables) -> list[str]:
    warnings = []
    if trace.damage:
        warnings.append(trace.damage)
    if trace.broken:
        warnings.append(f"{trace.broken} events could not be read")
    if found.dropped:
        warnings.append(f"{found.dropped} of {found.kernels} kernels left out: no time, or a negative duration")
    if found.whole_us:
        warnings.append("times are whole microseconds: shorter differences are not visible")
    if found.graphs_without_kernels:
        warnings.append(f"{found.graphs_without_kernels} graph replays show no kernels")
    if NO_SHAPE in found.names.shapes:
        warnings.append("some kernels have no launch shape")
    return warnings


def _whole(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        return int(value)
    except (TypeError, ValueError, OverflowError):
        return None
