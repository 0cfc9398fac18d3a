import importlib.util
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import dprankdiag
from dprankdiag.catalog.causes import load_causes
from dprankdiag.classifiers import ALL, BY_WAITS, PAGES
from dprankdiag.cli.base import VERBS

ROOT = Path(__file__).parents[1]
PAGE_PARTS = ("What you see", "Why it happens", "How we tell it apart", "What to do")
MAX_LINES = 450
NEEDS = {"dprankdiag.harness.gpu_kernels": "triton"}
"""Modules that only a machine with a GPU imports, and what they need there."""


def _list_sources() -> list[Path]:
    return sorted((ROOT / "dprankdiag").rglob("*.py"))


def test_the_import_contracts_hold() -> None:
    command = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([command], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_every_module_can_be_imported() -> None:
    for module in pkgutil.walk_packages(dprankdiag.__path__, "dprankdiag."):
        needed = NEEDS.get(module.name)
        if not module.name.endswith("__main__") and (needed is None or importlib.util.find_spec(needed)):
            importlib.import_module(module.name)


def test_each_classifier_is_a_page_of_four_parts_in_order() -> None:
    for classifier in PAGES:
        page = inspect.getdoc(type(classifier)) or ""
        places = [page.find(part) for part in PAGE_PARTS]
        assert -1 not in places, f"{classifier.cause} lacks {PAGE_PARTS[places.index(-1)]}"
        assert places == sorted(places), classifier.cause


def test_each_cause_that_can_be_claimed_is_in_the_catalogue() -> None:
    assert {classifier.cause for classifier in PAGES} <= set(load_causes())


def test_no_two_classifiers_share_a_cause() -> None:
    causes = [classifier.cause for classifier in PAGES]
    assert len(causes) == len(set(causes))


def test_what_judges_matrices_has_its_page_as_a_judge_of_traces() -> None:
    assert {type(classifier) for classifier in BY_WAITS} <= {type(classifier) for classifier in ALL}


def test_each_verb_has_its_own_file() -> None:
    for verb, module in VERBS.items():
        assert module == f"dprankdiag.cli.{verb}"
        assert (ROOT / "dprankdiag" / "cli" / f"{verb}.py").exists()


def test_no_source_file_is_too_long_to_read() -> None:
    lengths = {source: len(source.read_text("utf-8").splitlines()) for source in _list_sources()}
    assert [str(source) for source, length in lengths.items() if length > MAX_LINES] == []


def test_nothing_is_called_utils() -> None:
    assert [source.name for source in _list_sources() if "util" in source.stem] == []


def test_the_recording_of_the_demo_is_the_example() -> None:
    demo = ROOT / "dprankdiag" / "data" / "demo.sqlite"
    assert demo.read_bytes() == (ROOT / "examples" / "load-one-rank.sqlite").read_bytes()
