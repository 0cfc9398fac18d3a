"""The rows of an export that describe the session: machine, GPUs, processes, clock, capture and export options."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from dprankdiag.harness.events import NO_DEVICE, UTC_START_NS, FileClock, Process, Recording
from dprankdiag.harness.nsys_schema import ENUMS, PRODUCTS, Schema, list_columns

_MACHINE = 1 << 48
_GPU = {
    "vmId": _MACHINE, "name": "NVIDIA H200", "isDiscrete": 1, "l2CacheSize": 62_914_560,
    "totalMemory": 150_754_820_096, "memoryBandwidth": 4_814_208_000_000, "clockRate": 1_980_000_000, "smCount": 132,
    "luid": 0, "chipName": "GH100", "ctxswDevPath": "", "ctrlDevPath": "", "revision": 161, "nodeMask": 0,
    "constantMemory": 65_536, "maxIPC": 4, "maxRegistersPerBlock": 65_536, "maxShmemPerBlock": 49_152,
    "maxShmemPerBlockOptin": 232_448, "maxShmemPerSm": 233_472, "maxRegistersPerSm": 65_536, "threadsPerWarp": 32,
    "asyncEngines": 3, "maxWarpsPerSm": 64, "maxBlocksPerSm": 32, "maxThreadsPerBlock": 1024, "maxBlockDimX": 1024,
    "maxBlockDimY": 1024, "maxBlockDimZ": 64, "maxGridDimX": 2_147_483_647, "maxGridDimY": 65_535,
    "maxGridDimZ": 65_535, "computeMajor": 9, "computeMinor": 0, "smMajor": 9, "smMinor": 0,
}  # fmt: skip

Rows = list[Sequence[object]]


def list_session_rows(
    recording: Recording, processes: Sequence[Process], clock: FileClock, schema: Schema, last_ns: int
) -> dict[str, Rows]:
    """List the rows that are not events, by table."""
    host = processes[0].host
    on_gpu = [it for it in processes if it.gpu != NO_DEVICE]
    return {
        "PROCESSES": [(_MACHINE | it.pid << 24, it.pid, it.title[:15]) for it in processes],
        "TARGET_INFO_GPU": _gpus(on_gpu, schema),
        "TARGET_INFO_CUDA_DEVICE": [(it.gpu, it.device, it.pid, _uuid(it).replace("-", ""), 132) for it in on_gpu],
        "TARGET_INFO_SESSION_START_TIME": [_session_start(clock, schema)],
        "TARGET_INFO_SYSTEM_ENV": _environment(host, bool(on_gpu)),
        "ANALYSIS_DETAILS": [_details(clock, schema, last_ns)],
        "EXPORT_META_DATA": _export_options(schema),
        "META_DATA_EXPORT": _export_options(schema),
        "META_DATA_CAPTURE": _capture_options(recording, bool(on_gpu)),
        **{table: list(rows) for table, rows in ENUMS.items()},
    }


def _uuid(process: Process) -> str:
    digits = hashlib.sha256(f"{process.host}/{process.gpu}".encode()).hexdigest()
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:32]))


def _gpus(processes: Sequence[Process], schema: Schema) -> Rows:
    rows: Rows = []
    for process in processes:
        own = {
            "id": process.gpu,
            "busLocation": f"0000:{0x1B + 0x11 * process.gpu:02x}:00.0",
            "pwGpuId": process.gpu,
            "uuid": _uuid(process),
            "cuDevice": process.gpu,
        }
        rows.append([(_GPU | own)[rule.name] for rule in list_columns("TARGET_INFO_GPU", schema)])
    return rows


def _session_start(clock: FileClock, schema: Schema) -> Sequence[object]:
    utc_ns = UTC_START_NS + clock.session_start_ns + clock.wall_error_ns
    text = datetime.fromtimestamp(utc_ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%S")
    boot = (clock.boot_ns + clock.session_start_ns,) if schema == "3.25" else ()
    return (utc_ns, text, text, *boot)


def _environment(host: str, on_gpu: bool) -> Rows:
    facts = (("CpuCores", 1, "192"), ("CpuArchitecture", 3, "x86_64"), ("CudaDriverVersion", 611, "13000")) * on_gpu
    return [(_MACHINE, "Local (CLI)", name, number, value) for name, number, value in (*facts, ("Hostname", 619, host))]


def _details(clock: FileClock, schema: Schema, last_ns: int) -> Sequence[object]:
    """Give the duration; start and stop count on another clock (only the newest age: the boot clock)."""
    start = clock.boot_ns + clock.session_start_ns if schema == "3.25" else 1_170_854_025
    duration = last_ns + 2_000_000
    return (_MACHINE, duration, start, start + duration)


def _export_options(schema: Schema) -> Rows:
    if schema not in PRODUCTS:
        return []
    product, version = PRODUCTS[schema]
    parts = version.split(".")
    rows: Rows = [
        ("EXPORT_PRODUCT_NAME", "NVIDIA Nsight Systems"),
        ("EXPORT_PRODUCT_VERSION", product),
        ("EXPORT_SCHEMA_VERSION", version),
    ]
    rows += [
        (f"EXPORT_SCHEMA_VERSION_{part}", text) for part, text in zip(("MAJOR", "MINOR", "MICRO"), parts, strict=True)
    ]
    rows += [("EXPORT_PARAM_LAZY", "true"), ("EXPORT_PARAM_TIME_NORMALIZE", "false")]
    if schema == "3.25":
        rows += [("EXPORT_PARAM_TIME_SHIFT", "0"), ("EXPORT_CONFIG_TIME_SHIFT", "0")]
    return rows


def _capture_options(recording: Recording, on_gpu: bool) -> Rows:
    rows: Rows = [("DEVICE_ID", "Local (CLI)"), ("CAPTURE_EVENT_TYPE", "NvtxEvents")]
    rows += [("CAPTURE_EVENT_TYPE", "Cuda")] * on_gpu
    if recording.graph_mode is not None:
        rows.append(("CUDA_GRAPH_TRACE_OPTIONS:MODE", recording.graph_mode.capitalize()))
    command, *arguments = recording.command
    rows.append(("PROCESS_0:COMMAND", command))
    rows += [(f"PROCESS_0:ARGUMENT_{position}", text) for position, text in enumerate(arguments)]
    return rows
