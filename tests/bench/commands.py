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
n_queries = int(sys.argv[1])
for path in sys.argv[2 + n_queries:]:
    connection = sqlite3.connect(path)
    for query in sys.argv[2:2 + n_queries]:
        print(len(pandas.read_sql(query, connection)))
"""
_RECIPE = """
import sqlite3, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
import pandas

def load(path):
    connection = sqlite3.connect(path)
    names = pandas.read_sql("SELECT id, value FROM StringIds", connection).set_index("id")["value"]
    rows = 0
    for table, column in (("CUPTI_ACTIVITY_KIND_KERNEL", "demangledName"), ("CUPTI_ACTIVITY_KIND_RUNTIME", "nameId")):
        frame = pandas.read_sql(f"SELECT * FROM {table}", connection)
        frame["name"] = frame[column].map(names)
        frame["duration"] = frame["end"] - frame["start"]
        frame.groupby("name")["duration"].agg(["count", "sum", "median"])
        rows += len(frame)
    return rows

with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
    print(sum(pool.map(load, sys.argv[1:])))
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


def read_frames(*paths: Path) -> list[str]:
    """Let pandas read the columns into frames, file by file."""
    quoted = {table: ", ".join(f'"{name}"' for name in names) for table, names in COLUMNS.items()}
    queries = [f"SELECT {names} FROM {table}" for table, names in quoted.items()]
    return [sys.executable, "-I", "-c", _PANDAS, str(len(queries)), *queries, *map(str, paths)]


def load_as_recipe(paths: Sequence[Path]) -> list[str]:
    """Load exports whole with pandas in a pool, put names to their numbers, and sum times by name."""
    return [sys.executable, "-I", "-c", _RECIPE, *map(str, paths)]


def join(bundles: Sequence[Path]) -> list[str]:
    """Join the digests of several nodes."""
    return [_TOOL, "analyze", *map(str, bundles), "--format", "json"]


def list_imports(path: Path, output: Path) -> list[str]:
    """Diagnose a file and print, on the last line, the modules that took."""
    return [sys.executable, "-I", "-c", _LIST_IMPORTS, str(path), str(output)]


def only_import(modules: list[str]) -> list[str]:
    """Import modules and end."""
    return [sys.executable, "-I", "-c", _IMPORT, *modules]
