from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from click.testing import CliRunner, Result

from dprankdiag.cli import main
from dprankdiag.cli.base import Doors
from dprankdiag.model.comparison import Comparison
from dprankdiag.model.diagnosis import Diagnosis
from tests import builders


class FakeOutcome(NamedTuple):
    diagnosis: Diagnosis
    tables: dict[str, Any]
    warnings: tuple[str, ...] = ()
    digests: None = None


class FakeRemedy(NamedTuple):
    key: str
    text: str
    source: str


class FakeCause(NamedTuple):
    title: str
    says: str
    remedies: tuple[FakeRemedy, ...] = ()


class FakeKernel(NamedTuple):
    family: str
    operation: str
    name: str
    calls: int
    total_ns: int
    share_ratio: float
    ranks: tuple[int, ...] = (0,)


CAUSES = {
    "load.context": FakeCause(
        "Uneven context length",
        "KV length is uneven",
        (FakeRemedy("route-by-tokens", "Route by tokens.", "the router's manual"),),
    ),
    "load.requests": FakeCause("Uneven request count", "request count is uneven"),
    "ledger.stale": FakeCause("Stale ledger", "a load snapshot that stopped"),
}
PAGES = {"load.context": "*What you see*\n\nEvery rank waits\nfor one.\n\n*What to do*\n\n- Route by tokens.\n- Split."}


@dataclass
class FakeProduct:
    """A product whose answer the test chooses, and which remembers what it was asked."""

    answer: Diagnosis = field(default_factory=builders.diagnosis)
    failure: BaseException | None = None
    asked: list[tuple[list[Path], dict[str, Any]]] = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    comparison: Comparison = field(default_factory=builders.comparison)
    compared: list[tuple[Any, Any]] = field(default_factory=list)
    tried: list[Any] = field(default_factory=list)

    def diagnose(
        self, paths: Sequence[Path], options: Mapping[str, Any], progress: Callable[[str, float | None], None] | None
    ) -> Any:
        self.asked.append((list(paths), dict(options)))
        if progress is not None:
            progress("reading", 0.5)
            progress("judging", None)
        if self.failure is not None:
            raise self.failure
        return FakeOutcome(self.answer, {}, self.warnings)

    def list_kernels(self, path: Path, patterns: Path | None) -> Any:
        if self.failure is not None:
            raise self.failure
        return [FakeKernel("attention", "", "mla_decode", 2, 900, 0.9), FakeKernel("other", "", "mystery", 1, 100, 0.1)]

    def compare(self, before: Any, after: Any, tried: Any) -> Comparison:
        self.compared.append((before, after))
        self.tried.append(tried)
        return self.comparison

    def doors(self) -> Doors:
        causes: Any = CAUSES
        return Doors(self.diagnose, self.list_kernels, lambda: causes, lambda: PAGES, self.compare)


@pytest.fixture
def product() -> FakeProduct:
    return FakeProduct()


@pytest.fixture
def run(product: FakeProduct) -> Callable[..., Result]:
    def invoke(*arguments: object, **extra: Any) -> Result:
        return CliRunner().invoke(main, [str(argument) for argument in arguments], obj=product.doors(), **extra)

    return invoke


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "run.sqlite"
    path.write_bytes(b"SQLite format 3\0")
    return path
