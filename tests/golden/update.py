"""Write golden pages and the output blocks of documents anew: ``python -m tests.golden.update``; read the diff."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dprankdiag.catalog.causes import load_causes
from dprankdiag.catalog.commands import tell_all
from dprankdiag.cli.base import load_cause_pages
from dprankdiag.harness.scenario_page import render_page
from dprankdiag.model import results
from dprankdiag.model.compared import COMPARED_TABLES
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.model.ledger_results import LEDGER_TABLES
from dprankdiag.store import recording_schema
from dprankdiag.views import causes, comparison, html, json, markdown, perfetto, text
from tests import builders
from tests.views.results import make_tables

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
README = ROOT / "README.md"
HARNESS = ROOT / "docs" / "harness.md"
CAUSES = ROOT / "docs" / "causes"
BUNDLE_PAGE = ROOT / "docs" / "bundle.md"
RECORDING_PAGE = ROOT / "docs" / "recording-file.md"
SCENARIO_PAGE = ROOT / "docs" / "scenarios.md"

DIAGNOSES: Mapping[str, Diagnosis] = {
    "findings": builders.diagnosis(),
    "healthy": builders.even_diagnosis(),
    "inconclusive": builders.undecided_diagnosis(),
}

_OUTPUT_BLOCK = re.compile(r"(<!-- output of: (?P<command>[^\n]+?) -->\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL)

_SCRIPT = re.compile(
    r"<script[^>]*>.*?</script>|(?<=<style>).*?(?=</style>)|(?<=script-src ).*?(?=; style-src)", re.DOTALL
)
"""What of a page is not looked at: scripts, their hashes, the figures' numbers, the style sheet."""


def make_pages() -> dict[str, str]:
    """Render every golden page by file name."""
    pages = {f"{name}.txt": text.render(diagnosis, {}) for name, diagnosis in DIAGNOSES.items()}
    pages |= {f"{name}.md": markdown.render(diagnosis, {}) for name, diagnosis in DIAGNOSES.items()}
    pages["findings.perfetto.json"] = perfetto.render(DIAGNOSES["findings"], make_tables(3, 4, 1))
    for name, diagnosis in DIAGNOSES.items():
        tables = {} if name == "inconclusive" else make_tables()
        pages[f"{name}.html"] = _SCRIPT.sub("...", html.render(diagnosis, tables)).replace("><", ">\n<")
    pages["findings.json"] = json.render(DIAGNOSES["findings"], {})
    pages["comparison.txt"] = comparison.render(builders.comparison(), "text")
    pages["comparison.md"] = comparison.render(builders.comparison(), "markdown")
    pages["not_comparable.txt"] = comparison.render(builders.incomparable(), "text")
    return pages


def make_cause_pages() -> dict[str, str]:
    """Render the documentation page of every cause by file name."""
    pages = load_cause_pages()
    return {
        f"{name}.md": causes.render_markdown(
            name, cause, pages.get(name, ""), tell_all(remedy.key for remedy in cause.remedies)
        )
        for name, cause in load_causes().items()
    }


def make_bundle_page() -> str:
    """Describe the tables of a bundle for the documentation."""
    head, _, words = (inspect.getdoc(results) or "").partition("\n\n")
    lines = ["# Tables of a bundle", "", head, "", words]
    for table in (*results.RESULT_TABLES, *COMPARED_TABLES, *LEDGER_TABLES):
        lines += ["", f"## {table.name}", "", f"A row is {table.row_is}.", "", "| column | type | unit | meaning |"]
        lines.append("|---|---|---|---|")
        for column in table.columns:
            dtype = "text" if column.dtype == "object" else column.dtype
            lines.append(f"| `{column.name}` | {dtype} | {column.unit} | {column.meaning} |")
    return "\n".join(lines) + "\n"


def make_recording_page() -> str:
    """Describe the tables of a recording of ledgers for the documentation."""
    head, _, words = (inspect.getdoc(recording_schema) or "").partition("\n\n")
    lines = ["# Tables of a recording", "", head, "", words]
    for table in recording_schema.list_tables():
        lines += [
            "",
            f"## {table.name}",
            "",
            f"A row is {table.row_is}.",
            "",
            "| column | type | meaning |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{column.name}` | {column.declared.split(' ')[0].lower() or 'any'} | {column.meaning} |"
            for column in table.columns
        ]
    return "\n".join(lines) + "\n"


def list_output_blocks(markdown: str) -> list[tuple[str, str]]:
    """Find the commands whose output a page shows, with the output it shows."""
    return [(match["command"], match["output"]) for match in _OUTPUT_BLOCK.finditer(markdown)]


def run_shown(command: str, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a command of the documentation as a reader would, with this environment's dprankdiag first on the path."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-c", command],
        cwd=folder,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
    )


def main() -> None:
    """Write all that is generated."""
    for name, content in make_pages().items():
        (FOLDER / name).write_text(content, "utf-8")
    for name, content in make_cause_pages().items():
        CAUSES.mkdir(exist_ok=True)
        (CAUSES / name).write_text(content, "utf-8")
    BUNDLE_PAGE.write_text(make_bundle_page(), "utf-8")
    RECORDING_PAGE.write_text(make_recording_page(), "utf-8")
    SCENARIO_PAGE.write_text(render_page(), "utf-8")
    for page in (README, HARNESS):
        shown = _OUTPUT_BLOCK.sub(
            lambda found: found[1] + run_shown(found[2]).stdout + found[4], page.read_text("utf-8")
        )
        page.write_text(shown, "utf-8")


if __name__ == "__main__":
    main()
