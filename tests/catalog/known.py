"""Kernel names whose family and operation are known by hand."""

import csv
from pathlib import Path


def read_tsv(path: Path) -> list[tuple[str, ...]]:
    """Read a table of tab-separated texts without its heading."""
    with path.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(lines, delimiter="\t", quoting=csv.QUOTE_NONE)
        next(rows)
        return [tuple(row) for row in rows if row]


KNOWN = read_tsv(Path(__file__).with_name("known.tsv"))
"""(family, operation or "", name)."""
