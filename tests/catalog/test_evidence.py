"""The catalogue of evidence and the names that findings use are the same list."""

import ast
from pathlib import Path

import dprankdiag.classifiers
import dprankdiag.pipelines
from dprankdiag.catalog.evidence import load_evidence


def list_used() -> dict[str, str]:
    """Return the names and units of all Evidence(...) written in the package."""
    used = {}
    for room in (dprankdiag.classifiers, dprankdiag.pipelines):
        for path in Path(room.__path__[0]).glob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Evidence":
                    name, unit = node.args[0], node.args[2]
                    assert isinstance(name, ast.Constant)
                    assert isinstance(unit, ast.Constant)
                    used[str(name.value)] = str(unit.value)
    return used


def test_every_name_that_findings_use_is_defined_and_no_other() -> None:
    assert set(list_used()) == set(load_evidence())


def test_findings_give_evidence_in_the_unit_that_the_catalogue_says() -> None:
    assert {name: kind.unit for name, kind in load_evidence().items()} == list_used()


def test_every_row_has_a_definition_that_is_a_sentence() -> None:
    assert all(kind.definition.endswith(".") for kind in load_evidence().values())
