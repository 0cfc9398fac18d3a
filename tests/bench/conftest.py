"""Measurements run only where they are asked for by their mark, and leave a page behind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.bench.exports import LARGE, Exports
from tests.bench.table import Figure, write_page

_HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the measurements out of a run that does not name their mark."""
    if "bench" in str(config.option.markexpr):
        return
    measured = [item for item in items if _HERE in item.path.parents and item.get_closest_marker("bench")]
    if measured:
        config.hook.pytest_deselected(items=measured)
        items[:] = [item for item in items if item not in measured]


@pytest.fixture(scope="session")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Exports]:
    """Exports in a folder that is removed afterwards, for they are large."""
    if shutil.which("sqlite3") is None:
        pytest.skip("the sqlite3 shell is missing: it sets the pace that others are measured by")
    folder = tmp_path_factory.mktemp("exports")
    yield Exports(folder)
    shutil.rmtree(folder)


@pytest.fixture(scope="session")
def figures() -> Iterator[list[Figure]]:
    """What was measured; a run prints and renews its lines of the page."""
    measured: list[Figure] = []
    yield measured
    print("\n" + "\n".join(figure.row() for figure in measured))
    if measured:
        write_page(measured, LARGE.kernels)
