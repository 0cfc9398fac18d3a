import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dprankdiag import __version__
from dprankdiag.cli.base import VERBS
from dprankdiag.errors import InputError
from tests.cli.conftest import CAUSES, FakeProduct
from tests.conftest import ROOT

Run = Callable[..., Result]


def test_help_lists_every_verb_and_nothing_else(run: Run) -> None:
    result = run("--help")
    assert result.exit_code == 0
    listed = [line.split()[0] for line in result.stdout.split("Commands:\n")[1].splitlines()]
    assert listed == list(VERBS)


def test_every_verb_explains_itself(run: Run) -> None:
    for verb in VERBS:
        result = run(verb, "--help")
        assert result.exit_code == 0
        assert "--debug" in result.stdout


def test_the_version_is_printed(run: Run) -> None:
    assert run("--version").stdout == f"dprankdiag, version {__version__}\n"


def test_no_verb_prints_the_help_to_stderr(run: Run) -> None:
    result = run()
    assert result.exit_code == 2
    assert result.stdout == ""
    assert "Commands:" in result.stderr


def test_an_unknown_verb_or_option_is_one_line(run: Run) -> None:
    for arguments in (("dashboards",), ("--nonsense",), ("analyze", "--nonsense")):
        result = run(*arguments)
        assert result.exit_code == 2
        assert result.stderr.startswith("dprankdiag: ")
        assert result.stderr.count("\n") == 1


def test_help_imports_nothing_heavy() -> None:
    heavy = {"numpy", "pandas", "rich", "pyarrow", "plotly", "msgspec", "dprankdiag.pipelines.diagnose"}
    program = (
        "import sys\n"
        "from dprankdiag.cli import main\n"
        "try:\n"
        "    main(['--help'])\n"
        "except SystemExit:\n"
        f"    print(sorted({heavy!r} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_page_of_text_needs_no_plotly() -> None:
    program = (
        "import sys\n"
        "from dprankdiag.cli import main\n"
        "try:\n"
        "    main(['analyze', 'examples/healthy.sqlite'])\n"
        "except SystemExit:\n"
        "    print(sorted({'plotly', 'pandas', 'dash'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_has_gone_away_is_no_error(tmp_path: Path) -> None:
    program = tmp_path / "talk.py"
    program.write_text("from dprankdiag.cli.terminal import write_result\nwrite_result('x\\n' * 999_999)\n")
    pipe = f"set -o pipefail; '{sys.executable}' '{program}' | head -n 1"
    done = subprocess.run(["bash", "-c", pipe], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == ""


def test_kernels_lists_families_and_unknown_names(run: Run, trace: Path) -> None:
    result = run("kernels", trace)
    assert result.exit_code == 0
    assert "Names that no pattern knows (10 % of the time)" in result.stdout


def test_kernels_as_json_is_one_object(run: Run, trace: Path) -> None:
    document = json.loads(run("kernels", trace, "--format", "json").stdout)
    assert document["families"][0]["family"] == "attention"
    assert document["path"] == str(trace)


def test_kernels_answers_errors_like_analyze(run: Run, product: FakeProduct, trace: Path, tmp_path: Path) -> None:
    assert run("kernels", tmp_path / "absent").exit_code == 2
    assert run("kernels", trace, "--patterns", tmp_path / "absent").exit_code == 2
    product.failure = InputError("not a trace")
    assert run("kernels", trace).exit_code == 3


def test_explain_without_a_cause_lists_them_all(run: Run) -> None:
    result = run("explain")
    assert result.exit_code == 0
    assert all(name in result.stdout for name in CAUSES)


def test_explain_with_a_class_lists_its_causes(run: Run) -> None:
    stdout = run("explain", "load").stdout
    assert "load.requests" in stdout
    assert "ledger.stale" not in stdout


def test_explain_prints_the_page_and_the_remedies_with_their_source(run: Run) -> None:
    stdout = run("explain", "load.context").stdout
    for part in (
        "Uneven context length",
        "What you see",
        "Every rank waits for one.",
        "- Split.",
        "Source: the router",
    ):
        assert part in stdout


def test_explain_of_a_cause_without_a_page_tells_what_the_catalogue_says(run: Run) -> None:
    assert "a load snapshot that stopped" in run("explain", "ledger.stale").stdout


@pytest.mark.parametrize("given", ["load_context", "LOAD.CONTEXT"])
def test_explain_takes_a_cause_as_files_and_shouters_write_it(run: Run, given: str) -> None:
    assert "Uneven context length" in run("explain", given).stdout


def test_explain_of_an_unknown_cause_suggests_a_near_one(run: Run) -> None:
    result = run("explain", "load.contxt")
    assert result.exit_code == 2
    assert "did you mean load.context" in result.stderr
    assert run("explain", "zzz").exit_code == 2
