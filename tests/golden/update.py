"""Write the golden pages and the output blocks of the README anew: ``python -m tests.golden.update``; read the diff."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from dprankdiag.catalog.causes import load_causes
from dprankdiag.cli.base import load_cause_pages
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.views import causes, comparison, json, text
from tests import builders

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]
README = ROOT / "README.md"
CAUSES = ROOT / "docs" / "causes"

DIAGNOSES: Mapping[str, Diagnosis] = {
    "findings": builders.diagnosis(),
    "healthy": builders.even_diagnosis(),
    "inconclusive": builders.undecided_diagnosis(),
}

_OUTPUT_BLOCK = re.compile(r"(<!-- output of: (?P<command>[^\n]+?) -->\n```text\n)(?P<output>.*?)(```\n)", re.DOTALL)


def make_pages() -> dict[str, str]:
    """Render every golden page by file name."""
    pages = {f"{name}.txt": text.render(diagnosis) for name, diagnosis in DIAGNOSES.items()}
    pages["findings.json"] = json.render(DIAGNOSES["findings"])
    pages["comparison.txt"] = comparison.render(builders.comparison(), "text")
    pages["comparison.md"] = comparison.render(builders.comparison(), "markdown")
    pages["not_comparable.txt"] = comparison.render(builders.incomparable(), "text")
    return pages


def make_cause_pages() -> dict[str, str]:
    """Render the documentation page of every cause by file name."""
    pages = load_cause_pages()
    return {
        f"{name}.md": causes.render_markdown(name, cause, pages.get(name, "")) for name, cause in load_causes().items()
    }


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
    markdown = README.read_text("utf-8")
    README.write_text(
        _OUTPUT_BLOCK.sub(lambda found: found[1] + run_shown(found[2]).stdout + found[4], markdown), "utf-8"
    )


if __name__ == "__main__":
    main()
