"""The tables of an Nsight Systems SQLite export, at four ages of the format.

Each table is one line of columns: a name, then `!` for NOT NULL (`!<age` only before that age, `!k` for a key), `:t`
for text or `:r` for real (else integer), and `@age` for the age that brought it. Columns stand in the export's order.

Source: table definitions of public exports of Nsight Systems 2026.2.1 (schema 3.25.0), 2022.4.2 (3.0.0), 2022.2.1
(2.9.1) and of the .qdrep era (no metadata table); the whole-graph table from the vendor's schema reference 2026.4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Schema = Literal["legacy", "2.9", "3.0", "3.25"]

AGES: tuple[Schema, ...] = ("legacy", "2.9", "3.0", "3.25")

PRODUCTS: dict[Schema, tuple[str, str]] = {
    "2.9": ("2022.2.1.31", "2.9.1"),
    "3.0": ("2022.4.2.1", "3.0.0"),
    "3.25": ("2026.2.1.210", "3.25.0"),
}
"""Product version and schema version by age; the oldest files tell neither."""

_ACTIVITY = "start! end! deviceId! contextId! greenContextId@3.25 streamId! correlationId globalPid"

_COLUMNS: dict[str, str] = {
    "StringIds": "id!k value!:t",
    "CUPTI_ACTIVITY_KIND_KERNEL": f"{_ACTIVITY} demangledName! shortName! mangledName@2.9 launchType cacheConfig "
    "registersPerThread! gridX! gridY! gridZ! blockX! blockY! blockZ! staticSharedMemory! dynamicSharedMemory! "
    "localMemoryPerThread! localMemoryTotal! gridId! sharedMemoryExecuted graphNodeId sharedMemoryLimitConfig "
    "qmdBulkReleaseDone@3.25 qmdPreexitDone@3.25 qmdLastCtaDone@3.25 graphId@3.25 clusterX@3.25 clusterY@3.25 "
    "clusterZ@3.25 clusterSchedulingPolicy@3.25 maxPotentialClusterSize@3.25 maxActiveClusters@3.25 "
    "sharedMemoryRequestedPercentage@3.25 tensorSizeMinusOneElements!:t@3.25",
    "CUPTI_ACTIVITY_KIND_MEMCPY": f"{_ACTIVITY} bytes! copyKind! deprecatedSrcId srcKind dstKind srcDeviceId "
    "srcContextId dstDeviceId dstContextId migrationCause graphNodeId virtualAddress@2.9 copyCount@3.25",
    "CUPTI_ACTIVITY_KIND_MEMSET": f"{_ACTIVITY} value! bytes! graphNodeId memKind",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start! end! eventClass! globalTid correlationId nameId! returnValue! callchainId",
    "CUPTI_ACTIVITY_KIND_SYNCHRONIZATION": f"{_ACTIVITY} deprecatedSyncType@3.25 syncType! eventId! eventSyncId@3.25",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "timestamp@3.25 deviceId! contextId! greenContextId@3.25 streamId! correlationId "
    "globalPid eventId! eventSyncId@3.25",
    "CUPTI_ACTIVITY_KIND_GRAPH_TRACE": f"{_ACTIVITY} graphId! graphExecId!",
    "NVTX_EVENTS": "start! end eventType! rangeId category color text:t globalTid endGlobalTid textId domainId "
    "uint64Value int64Value doubleValue:r uint32Value int32Value floatValue:r jsonTextId jsonText:t "
    "binaryData:t@3.25",
    "PROCESSES": "globalPid pid name:t",
    "ThreadNames": "nameId! priority globalTid",
    "TARGET_INFO_GPU": "vmId! id! name:t busLocation:t isDiscrete l2CacheSize totalMemory memoryBandwidth clockRate "
    "smCount pwGpuId uuid:t luid chipName:t cuDevice ctxswDevPath:t ctrlDevPath:t revision nodeMask constantMemory "
    "maxIPC maxRegistersPerBlock maxShmemPerBlock maxShmemPerBlockOptin maxShmemPerSm maxRegistersPerSm "
    "threadsPerWarp asyncEngines maxWarpsPerSm maxBlocksPerSm maxThreadsPerBlock maxBlockDimX maxBlockDimY "
    "maxBlockDimZ maxGridDimX maxGridDimY maxGridDimZ computeMajor computeMinor smMajor smMinor",
    "TARGET_INFO_CUDA_DEVICE": "gpuId cudaId! pid! uuid:t numMultiprocessors",
    "TARGET_INFO_SESSION_START_TIME": "utcEpochNs utcTime:t localTime:t systemClockNs@3.25",
    "TARGET_INFO_SYSTEM_ENV": "globalVid!<3.25 devStateName!:t name!:t nameEnum! value!:t",
    "ANALYSIS_DETAILS": "globalVid! duration! startTime! stopTime!",
    "EXPORT_META_DATA": "name!:t value:t",
    "META_DATA_EXPORT": "name!:t value:t",
    "META_DATA_CAPTURE": "name!:t value:t",
    "ENUM_CUDA_MEMCPY_OPER": "id!k name:t label:t",
    "ENUM_CUPTI_SYNC_TYPE": "id!k name:t label:t",
}

_FIRST_AGE: dict[str, Schema] = {
    "PROCESSES": "2.9",
    "ANALYSIS_DETAILS": "2.9",
    "EXPORT_META_DATA": "2.9",
    "CUPTI_ACTIVITY_KIND_CUDA_EVENT": "2.9",
    "TARGET_INFO_CUDA_DEVICE": "3.25",
    "META_DATA_EXPORT": "3.25",
    "META_DATA_CAPTURE": "3.25",
    "ENUM_CUDA_MEMCPY_OPER": "3.0",
    "ENUM_CUPTI_SYNC_TYPE": "3.0",
}

_LAST_AGE: dict[str, Schema] = {"EXPORT_META_DATA": "3.0"}

ENUMS: dict[str, tuple[tuple[int, str, str], ...]] = {
    "ENUM_CUDA_MEMCPY_OPER": (
        (1, "CUDA_MEMCPY_KIND_HTOD", "Host-to-Device"),
        (2, "CUDA_MEMCPY_KIND_DTOH", "Device-to-Host"),
        (8, "CUDA_MEMCPY_KIND_DTOD", "Device-to-Device"),
        (10, "CUDA_MEMCPY_KIND_PTOP", "Peer-to-Peer"),
    ),
    "ENUM_CUPTI_SYNC_TYPE": (
        (1, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_EVENT_SYNCHRONIZE", "Event sync"),
        (2, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_WAIT_EVENT", "Stream wait sync"),
        (3, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_STREAM_SYNCHRONIZE", "Stream sync"),
        (4, "CUPTI_ACTIVITY_SYNCHRONIZATION_TYPE_CONTEXT_SYNCHRONIZE", "Context sync"),
    ),
}


@dataclass(frozen=True, slots=True)
class ColumnRule:
    """One column of a table definition."""

    name: str
    type: str
    required: bool
    key: bool

    @property
    def definition(self) -> str:
        """Write the column as SQL."""
        return f'"{self.name}" {self.type}' + " NOT NULL" * self.required + " PRIMARY KEY" * self.key


def has_table(table: str, schema: Schema) -> bool:
    """Tell whether an export of an age can hold a table."""
    age = AGES.index(schema)
    first = AGES.index(_FIRST_AGE.get(table, "legacy"))
    return first <= age <= AGES.index(_LAST_AGE.get(table, "3.25"))


def list_columns(table: str, schema: Schema) -> tuple[ColumnRule, ...]:
    """List a table's columns at an age."""
    rules = [_read_rule(text, schema) for text in _COLUMNS[table].split()]
    return tuple(rule for rule in rules if rule is not None)


def _read_rule(text: str, schema: Schema) -> ColumnRule | None:
    text, _, since = text.partition("@")
    if since and _is_before(schema, since):
        return None
    text, _, letter = text.partition(":")
    name, mark, rest = text.partition("!")
    required = bool(mark) and (not rest.startswith("<") or _is_before(schema, rest[1:]))
    return ColumnRule(name, {"t": "TEXT", "r": "REAL"}.get(letter, "INTEGER"), required, rest == "k")


def _is_before(schema: Schema, age: str) -> bool:
    ages: tuple[str, ...] = AGES
    return ages.index(schema) < ages.index(age)


def create_table(table: str, schema: Schema) -> str:
    """Write the statement that creates a table."""
    columns = ", ".join(rule.definition for rule in list_columns(table, schema))
    return f'CREATE TABLE "{table}" ({columns})'
