"""Digest a recording where it lies: a verdict of its own, and what a join with the recordings of others needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dprankdiag.errors import InputError, UsageError
from dprankdiag.pipelines.diagnose import Options, diagnose_inputs
from dprankdiag.pipelines.inputs import list_files, read_inputs
from dprankdiag.store.bundle import SUFFIX, is_bundle, pack_bundle

Progress = Callable[[str, "float | None"], None]


@dataclass(frozen=True, slots=True)
class Digested:
    """A bundle that can be joined, and what to say of it.

    Attributes:
        content: bytes of the bundle.
        ranks, steps: how many it holds; steps that its ranks could compare among themselves.
        is_whole: kernels are kept one by one, for a sum between calls would lose what the diagnosis needs.
    """

    content: bytes
    ranks: int
    steps: int
    is_whole: bool


def digest(path: Path, patterns: Path | None = None, progress: Progress | None = None) -> Digested:
    """Digest one recording.

    Raises:
        UsageError: there is no such path.
        InputError: it is no recording of kernels or ranges, or cannot be read.
    """
    if is_bundle(path):
        raise InputError("a bundle, expected a trace", where=str(path), mend="join bundles with dprankdiag analyze")
    inputs = read_inputs([path], progress)
    if len(inputs.readings) != 1 or inputs.unusable:
        mend = "dprankdiag analyze takes such files as they are"
        raise InputError("holds no trace, and nothing else is digested", where=str(path), mend=mend)
    outcome = diagnose_inputs(inputs, Options(patterns=patterns, keep_digests=True), progress=progress)
    told, digests = outcome.diagnosis, outcome.digests
    assert digests is not None  # there is a recording, and all of it was asked for
    content = pack_bundle(told, outcome.tables, digests.members)
    return Digested(content, len(told.ranks), told.time.steps, digests.is_whole)


def list_traces(paths: Sequence[Path]) -> list[Path]:
    """List the files to digest; a folder stands for its files and exports, bundles among them left out.

    Raises:
        UsageError: a path does not exist.
    """
    listed = [(file.path, named) for file, named in list_files(paths)]
    return [path for path, named in listed if named or not is_bundle(path)]


def name_bundles(paths: Sequence[Path]) -> list[str]:
    """Name the bundle of each file: as the file, with its folder before it where files of several folders share a name.

    Raises:
        UsageError: two files would still share one.
    """
    plain = [_stem(path) for path in paths]
    names = [
        stem if plain.count(stem) == 1 else f"{path.absolute().parent.name}-{stem}"
        for stem, path in zip(plain, paths, strict=True)
    ]
    for number, name in enumerate(names):
        if name in names[:number]:
            other = paths[names.index(name)]
            mend = "digest them one by one, each --into a folder of its own"
            raise UsageError(f"would have the same name as that of {other}", where=str(paths[number]), mend=mend)
    return [f"{name}{SUFFIX}" for name in names]


def _stem(path: Path) -> str:
    name = path.name
    for suffix in (".gz", ".json", ".sqlite"):
        name = name.removesuffix(suffix)
    return name or path.name
