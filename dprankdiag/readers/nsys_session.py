"""Read what an export says about itself: producer, host, clocks, and how the capture was made."""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.model.sources import Capture, Session
from dprankdiag.readers.launch_arguments import expect_ranks
from dprankdiag.readers.nsys_export import Like, NsysExport, OneOf

_EXPORT_TABLES = ("META_DATA_EXPORT", "EXPORT_META_DATA")
_NORMALIZED_FROM_NS = 10**17
_KNOWN_SCHEMA_MAJOR = 3
_LONGEST_DIAGNOSTIC = 300
_WARNING = 2
"""Severity of a DIAGNOSTIC_EVENT that is worth telling: 1 is information, 3 an error."""
# Options worth comparing between the files of one deployment; a list of what may be kept, since the same table holds
# the launcher's environment.
_OPTIONS = (
    "CAPTURE_EVENT_TYPE",
    "COLLECT_GPU_CTX_SW_TRACE",
    "COLLECT_GPU_MEMORY_USAGE",
    "CUDA_FLUSH_PERIOD",
    "CUDA_GRAPH_TRACE_OPTIONS:MODE",
    "CUDA_SKIP_SOME_API_CALLS",
    "CUDA_TRACE_SCOPE",
    "INCLUDE_CHILDREN",
    "LINUX_PERF_OPTIONS:COLLECTION_MODE",
    "RATE_HZ",
    "TRACE_AFTER_FORK_BEFORE_EXEC",
)


@dataclass(frozen=True, slots=True)
class ExportFacts:
    """The export's own metadata.

    Attributes:
        producer: product version, None for exports before 2022.
        schema: schema version, None likewise.
        is_utc: times were exported as UTC epoch ns.
        shift_ns: what the export added to all times.
        host: where the export ran; only likely where the capture ran.
        is_filtered: tables or times were selected when exporting.
    """

    producer: str | None
    schema: str | None
    is_utc: bool
    shift_ns: int
    host: str | None
    is_filtered: bool

    @property
    def is_unknown(self) -> bool:
        """Say whether the schema is newer than any seen."""
        major = (self.schema or "0").split(".")[0]
        return major.isdigit() and int(major) > _KNOWN_SCHEMA_MAJOR


def read_export_facts(db: NsysExport) -> ExportFacts:
    """Read the metadata table under either of its names; none of them is a legacy export."""
    facts: dict[str, str] = {}
    for table in _EXPORT_TABLES:
        for name, value in db.rows(table, ("name", "value")):
            facts.setdefault(str(name), "" if value is None else str(value))
    shift = _whole(facts.get("EXPORT_PARAM_TIME_SHIFT")) or _whole(facts.get("EXPORT_CONFIG_TIME_SHIFT")) or 0
    filters = [facts.get(f"EXPORT_PARAM_{what}_TO_EXPORT") for what in ("TABLES", "TIMES")]
    return ExportFacts(
        producer=".".join(facts["EXPORT_PRODUCT_VERSION"].split(".")[:3])
        if "EXPORT_PRODUCT_VERSION" in facts
        else None,
        schema=facts.get("EXPORT_SCHEMA_VERSION"),
        is_utc=facts.get("EXPORT_PARAM_TIME_NORMALIZE", "").lower() in ("true", "1"),
        shift_ns=shift,
        host=facts.get("EXPORT_HOST") or None,
        is_filtered=any(filters),
    )


def read_session(db: NsysExport, facts: ExportFacts, start_ns: int, end_ns: int) -> Session:
    """Describe the session clock, given the span of the events read.

    `systemClockNs` is the boot clock at session start where the column exists. Times that the export normalised or
    shifted move the zero of the axis, so both clocks are moved with it.
    """
    row = (db.rows("TARGET_INFO_SESSION_START_TIME", ("utcEpochNs", "systemClockNs"), limit=1) or [(None, None)])[0]
    utc, system = (value if isinstance(value, int) and value > 0 else None for value in row)
    is_utc = facts.is_utc or start_ns > _NORMALIZED_FROM_NS
    zero = (utc or 0) if is_utc else facts.shift_ns
    if is_utc and utc is None:
        system = None
    return Session(
        host=_read_host(db) or facts.host,
        utc_start_ns=0 if is_utc else None if utc is None else utc - zero,
        system_clock_ns=None if system is None else system - zero,
        start_ns=start_ns,
        end_ns=end_ns,
        is_utc=is_utc,
    )


def read_capture(db: NsysExport, has_graph_rows: bool) -> Capture:
    """Read how the capture was made, by allow-list; never the environment."""
    options: dict[str, list[str]] = {}
    of_process: dict[str, list[str]] = {}
    arguments: list[tuple[int, str]] = []
    command = ""
    rows = db.rows("META_DATA_CAPTURE", ("name", "value"), Like("name", "%ENVIRON%", is_opposite=True))
    for name, value in rows if db.has("META_DATA_CAPTURE", "value") else ():
        if name in _OPTIONS:
            options.setdefault(name, []).append(str(value))
        elif (short := str(name).removeprefix("PROCESS_0:")) in _OPTIONS:
            of_process.setdefault(short, []).append(str(value))
        elif name == "PROCESS_0:COMMAND":
            command = str(value)
        elif (
            str(name).startswith("PROCESS_0:ARGUMENT_") and (number := _whole(str(name).rpartition("_")[2])) is not None
        ):
            arguments.append((number, str(value)))
    options = of_process | options
    mode = options.get("CUDA_GRAPH_TRACE_OPTIONS:MODE", [""])[0].lower()
    return Capture(
        graph_mode=mode if mode in ("graph", "node") else "graph" if has_graph_rows else None,
        expected_ranks=expect_ranks(command, [text for _, text in sorted(arguments)]),
        options={name: ", ".join(sorted(set(values))) for name, values in sorted(options.items())},
        diagnostics=_read_diagnostics(db),
    )


def _read_diagnostics(db: NsysExport) -> tuple[str, ...]:
    rows = db.rows("DIAGNOSTIC_EVENT", ("severity", "text")) if db.has("DIAGNOSTIC_EVENT", "text") else []
    texts = [str(text) for severity, text in rows if isinstance(severity, int) and severity >= _WARNING]
    return tuple(dict.fromkeys(" ".join(text.split())[:_LONGEST_DIAGNOSTIC] for text in texts))


def _read_host(db: NsysExport) -> str | None:
    rows = db.rows("TARGET_INFO_SYSTEM_ENV", ("value",), OneOf("name", ("Hostname",)), limit=1)
    return str(rows[0][0]) if rows and rows[0][0] else None


def _whole(text: str | None) -> int | None:
    try:
        return int(text or "")
    except ValueError:
        return None
