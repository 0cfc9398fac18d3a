"""What the project depends on is declared, used, pinned, and free to use; all of it told without a network.

Known vulnerabilities are told by a service: `./dev audit` asks it where `pip-audit` and a network are there.
"""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

OURS = ("dprankdiag", "tests", "dashboards")
WITHOUT_IMPORT = frozenset({"ruff", "mypy", "pandas-stubs", "types-pyyaml", "pytest-xdist", "import-linter"})
"""Tools that are run, types that are read, and a plugin that pytest finds by itself."""

NOT_INSTALLED = {"triton": "torch", "zmq": "pyzmq"}
"""Module → project that brings it, of extras that a development environment may lack."""

BUILD = ("editables",)
"""What hatchling asks for when it installs the project as it stands."""

FREE = re.compile(
    r"MIT|BSD|Apache|ISC|PSF|Python Software Foundation|MPL|Mozilla|0BSD|Zlib|Zope|Unlicense|CC0|HPND", re.IGNORECASE
)
BINDING = re.compile(r"\b(?:A?GPL|GNU (?:Affero )?General Public)", re.IGNORECASE)
CORRECTED: Mapping[str, str] = {}
"""Licences of projects whose metadata does not tell."""


@cache
def project() -> dict[str, Any]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        return tomllib.load(file)


def declared(*, extras: bool = False, dev: bool = False) -> dict[str, Requirement]:
    """Collect what pyproject.toml asks for, by name."""
    texts = list(project()["project"]["dependencies"])
    texts += [text for more in project()["project"]["optional-dependencies"].values() for text in more] * extras
    texts += project()["dependency-groups"]["dev"] * dev
    found = map(Requirement, texts)
    return {canonicalize_name(one.name): one for one in found}


@cache
def locked() -> dict[str, str]:
    lines = (ROOT / "requirements-dev.lock").read_text("utf-8").splitlines()
    pairs = (line.split("==") for line in lines if line and not line.startswith("#"))
    return {canonicalize_name(name): version for name, version in pairs}


def list_imports(folder: Path) -> Iterator[tuple[str, Path]]:
    """List the outermost module of every import below a folder, also those inside functions."""
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            for name in names:
                outermost = name.split(".")[0]
                if outermost not in sys.stdlib_module_names and outermost not in OURS:
                    yield outermost, path


@cache
def _projects() -> Mapping[str, list[str]]:
    return packages_distributions()


def bring(module: str) -> set[str]:
    """Name the projects that bring a module."""
    found = _projects().get(module) or [NOT_INSTALLED.get(module, module)]
    return {canonicalize_name(name) for name in found}


def needs(name: str, *, extras: Iterable[str] = ()) -> list[Requirement]:
    """List what an installed project needs here; nothing for one that is not installed."""
    try:
        texts = distribution(name).requires or []
    except PackageNotFoundError:
        return []
    environments = [{**default_environment(), "extra": extra} for extra in ("", *extras)]
    asked = map(Requirement, texts)
    return [one for one in asked if one.marker is None or any(map(one.marker.evaluate, environments))]


def close_over(names: Iterable[str]) -> set[str]:
    """Add to projects what they need, and what that needs."""
    found: set[str] = set()
    todo = list(names)
    while todo:
        name = canonicalize_name(todo.pop())
        if name not in found:
            found.add(name)
            todo += [one.name for one in needs(name)]
    return found


def test_what_the_product_imports_is_declared() -> None:
    known = set(declared(extras=True))
    strangers = {module: str(path) for module, path in list_imports(ROOT / "dprankdiag") if not bring(module) & known}
    assert strangers == {}


def test_what_the_tests_import_is_declared() -> None:
    known = set(declared(extras=True, dev=True))
    strangers = {module: str(path) for module, path in list_imports(ROOT / "tests") if not bring(module) & known}
    assert strangers == {}


def test_what_is_declared_is_imported() -> None:
    product = {name for module, _ in list_imports(ROOT / "dprankdiag") for name in bring(module)}
    tests = {name for module, _ in list_imports(ROOT / "tests") for name in bring(module)}
    assert set(declared(extras=True)) - product - {"adbc-driver-manager"} == set()
    assert set(declared(dev=True)) - product - tests - WITHOUT_IMPORT - {"adbc-driver-manager"} == set()


def test_the_lock_pins_all_that_is_declared_and_all_that_it_needs() -> None:
    asked = declared(dev=True)
    wrong = {name: str(one) for name, one in asked.items() if not one.specifier.contains(locked().get(name, "0"))}
    assert wrong == {}
    assert close_over(asked) - set(locked()) == set()


def test_the_lock_pins_nothing_that_nobody_needs() -> None:
    build = [Requirement(text).name for text in project()["build-system"]["requires"]]
    assert set(locked()) - close_over([*declared(dev=True), *build, *BUILD]) == set()


def test_what_is_installed_is_what_the_lock_pins() -> None:
    found = {}
    for name, version in locked().items():
        try:
            installed = distribution(name).version
        except PackageNotFoundError:
            continue  # of another platform
        if installed != version:
            found[name] = (installed, version)
    assert found == {}


def test_what_is_installed_fits_together() -> None:
    broken = [
        (name, str(one), version)
        for name in close_over(declared(dev=True))
        for one in needs(name)
        if (version := locked().get(canonicalize_name(one.name))) and not one.specifier.contains(version, True)
    ]
    assert broken == []


def tell_licence(name: str) -> str:
    """Tell the licence of an installed project as its metadata does."""
    told = distribution(name).metadata
    classifiers = [text for text in told.get_all("Classifier") or [] if text.startswith("License ::")]
    return "; ".join(filter(None, [told.get("License-Expression"), *classifiers, (told.get("License") or "")[:200]]))


@pytest.mark.parametrize("name", sorted(close_over(declared())))
def test_what_users_install_is_free_and_binds_nobody(name: str) -> None:
    try:
        licence = CORRECTED.get(name) or tell_licence(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is of another platform or Python")
    assert FREE.search(licence), f"{name}: {licence!r}"
    assert not BINDING.search(licence), f"{name}: {licence!r}"
