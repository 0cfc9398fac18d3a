import re
from pathlib import Path

import pytest

from dprankdiag.catalog.kernels import FAMILIES, load_kernels
from dprankdiag.cli.analyze import command
from dprankdiag.cli.base import VERBS
from tests.golden.update import HARNESS, README, ROOT, list_output_blocks, run_shown

MARKDOWN = README.read_text("utf-8")
DOCUMENTS = [README, *sorted((ROOT / "docs").glob("*.md"))]
NOT_RUN = ("./dev", "git ", "pip ", "nsys ", "python3 -m venv")
"""Beginnings of commands that need a network, a GPU or another checkout."""


def _list_commands(markdown: str) -> list[str]:
    blocks = re.findall(r"```sh\n(.*?)```", markdown, re.DOTALL)
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


COMMANDS = [line for line in _list_commands(MARKDOWN) if not line.startswith(NOT_RUN)]


@pytest.mark.parametrize(
    "command, output", [*list_output_blocks(MARKDOWN), *list_output_blocks(HARNESS.read_text("utf-8"))]
)
def test_the_output_shown_is_the_output_given(command: str, output: str) -> None:
    assert run_shown(command).stdout == output, "if the change is meant: python -m tests.golden.update"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_of_the_readme_runs(command: str, tmp_path: Path) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = run_shown(command, tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_the_readme_shows_a_real_output_and_runs_commands() -> None:
    assert list_output_blocks(MARKDOWN)
    assert len(COMMANDS) >= 2


def test_every_verb_and_exit_code_is_in_the_readme() -> None:
    for verb in VERBS:
        assert f"dprankdiag {verb}" in MARKDOWN
    for code in (0, 1, 2, 3, 4, 130):
        assert re.search(rf"^\| {code} \|", MARKDOWN, re.MULTILINE)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda document: document.name)
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    for target in re.findall(r"(?:\]\(|src(?:set)?=\")([^)#\"]+)", document.read_text("utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_the_patterns_shown_name_kernels(tmp_path: Path) -> None:
    (shown,) = re.findall(r"```toml\n(.*?)```", (ROOT / "docs" / "recording.md").read_text("utf-8"), re.DOTALL)
    path = tmp_path / "patterns.toml"
    path.write_text(shown)
    catalog = load_kernels(path)
    family, operation = catalog.classify("void my_gather_kernel<float>(float*)", "my_gather_kernel")
    assert (FAMILIES[family], operation) == ("collective", "all_gather")
    assert FAMILIES[catalog.classify("my_merge_splits", "my_merge_splits")[0]] == "attention"


def test_every_kind_of_input_is_in_the_readme_and_in_the_help() -> None:
    help_text = " ".join((command.help or "").split())
    for kind in ("Nsight Systems exports", "torch profiler traces", "receive-wait matrix", "Flight Recorder"):
        assert kind in MARKDOWN
        assert kind in help_text
