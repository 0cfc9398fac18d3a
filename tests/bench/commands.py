"""The commands that are measured against each other."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

COLUMNS = {
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "globalPid", "deviceId", "streamId", "correlationId", "demangledName", "shortName",
        "graphNodeId", "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": ("start", "end", "globalTid", "correlationId", "nameId"),
}  # fmt: skip
"""The columns of the two long tables that a diagnosis reads."""

_PANDAS = """
import sqlite3, sys
import pandas
connection = sqlite3.connect(sys.argv[1])
for query in sys.argv[2:]:
    print(len(pandas.read_sql(query, connection)))
"""
_LIST_IMPORTS = """
import sys
from dprankdiag.cli import main
sys.argv = ["dprankdiag", "analyze", sys.argv[1], "--format", "json", "-o", sys.argv[2]]
try:
    main()
except SystemExit:
    pass
print("\\n" + " ".join(sorted(name for name in sys.modules if name != "__main__")))
"""
_IMPORT = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except Exception:
        pass
"""
_TOOL = str(Path(sys.executable).with_name("dprankdiag"))


def analyze(path: Path) -> list[str]:
    """Diagnose a file."""
    return [_TOOL, "analyze", str(path), "--format", "json"]


def show_help() -> list[str]:
    """Show the help."""
    return [_TOOL, "--help"]


def show_dashboard(targets: Sequence[str]) -> list[str]:
    """Serve the dashboard of running engines on a free port."""
    return [_TOOL, "dashboard", *targets, "--port", "0"]


def scan(path: Path) -> list[str]:
    """Let the database's shell read every value of the columns once."""
    queries = (
        f"SELECT {', '.join(f'total({chr(34)}{name}{chr(34)})' for name in names)} FROM {table};"
        for table, names in COLUMNS.items()
    )
    return ["sqlite3", f"file:{path}?mode=ro", " ".join(queries)]


def read_frames(path: Path) -> list[str]:
    """Let pandas read the columns into frames."""
    quoted = {table: ", ".join(f'"{name}"' for name in names) for table, names in COLUMNS.items()}
    queries = (f"SELECT {names} FROM {table}" for table, names in quoted.items())
    return [sys.executable, "-I", "-c", _PANDAS, str(path), *queries]


def list_imports(path: Path, output: Path) -> list[str]:
    """Diagnose a file and print, on the last line, the modules that took."""
    return [sys.executable, "-I", "-c", _LIST_IMPORTS, str(path), str(output)]


def only_import(modules: list[str]) -> list[str]:
    """Import modules and end."""
    return [sys.executable, "-I", "-c", _IMPORT, *modules]
