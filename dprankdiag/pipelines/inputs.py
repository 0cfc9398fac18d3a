"""From paths to readings: folders opened, kinds told apart, unusable inputs reported."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.model.digests import DIGEST
from dprankdiag.model.flight_dumps import FlightDump
from dprankdiag.model.ledgers import LedgerFile
from dprankdiag.model.recordings import RECORDING
from dprankdiag.model.sources import Reading, Source
from dprankdiag.model.wait_matrix import WaitMatrix
from dprankdiag.pipelines.ledger_files import STDIN, read_ledger_file
from dprankdiag.pipelines.recordings import read_recorded_file
from dprankdiag.readers.flight_recorder import FlightRecorderReader
from dprankdiag.readers.ledger_kinds import LEDGER
from dprankdiag.readers.named_paths import NamedPath, split_named
from dprankdiag.readers.nsys_parquet import NsysParquetReader
from dprankdiag.readers.nsys_sqlite import NsysSqliteReader
from dprankdiag.readers.sniff import NSYS_SQLITE, TORCH_JSON, is_export_folder, sniff
from dprankdiag.readers.torch_json import TorchJsonReader
from dprankdiag.readers.wait_matrix import WaitMatrixReader
from dprankdiag.store.bundle import is_bundle
from dprankdiag.store.digests import read_digests

Readable = Reading | WaitMatrix | FlightDump | LedgerFile
Result = Sequence[Readable] | InputError | UsageError
"""What a file holds, a bundle perhaps several digests, or what is wrong with it."""

READERS: Mapping[str, Callable[[Path], Readable]] = {
    NsysSqliteReader.kind: NsysSqliteReader().read,
    NsysParquetReader.kind: NsysParquetReader().read,
    TorchJsonReader.kind: TorchJsonReader().read,
    WaitMatrixReader.kind: WaitMatrixReader().read,
    FlightRecorderReader.kind: FlightRecorderReader().read,
    LEDGER: read_ledger_file,
    RECORDING: read_recorded_file,
}
"""How each kind that `sniff` tells is read."""

_WORTH_PROCESSES_BYTES = 16 << 20
"""From so many bytes of torch traces on, most of them packed, processes take less time than it takes to start them."""

_WORTH_THREADS_BYTES = 4 << 20
"""From so many bytes of bundles on, threads unpack them in less time than it takes to start them."""

Progress = Callable[[str, float | None], None]


@dataclass(frozen=True, slots=True)
class Inputs:
    """What could be read, by kind and in the order given, and what could not."""

    readings: tuple[Reading, ...]
    unusable: tuple[Source, ...]
    matrices: tuple[WaitMatrix, ...] = ()
    dumps: tuple[FlightDump, ...] = ()
    ledgers: tuple[LedgerFile, ...] = ()


def read_inputs(
    paths: Sequence[Path], progress: Progress | None = None, jobs: int | None = None, patterns: str = ""
) -> Inputs:
    """Read every file given; a folder stands for its files and the parquetdir exports in it, or is such an export.

    A named file of unknown kind is an error; inside a folder it is passed over with a note. A damaged file is an error
    only if nothing else could be read.

    Args:
        jobs: files to read at a time; None for as many as pay.
        patterns: see `store.digests.read_digests`.

    Raises:
        UsageError: a path does not exist.
        InputError: a named file is of no known kind, or nothing could be read.
    """
    readable: list[Readable] = []
    unusable: list[Source] = []
    first: InputError | None = None
    files = list_files(paths)
    with ExitStack() as stack:
        results = _read_all([file.path for file, _ in files], jobs, stack, patterns)
        for number, ((file, named), result) in enumerate(zip(files, results, strict=True)):
            path = file.path
            if progress is not None:
                progress(f"read {path.name}", (number + 1) / len(files))
            if not isinstance(result, (InputError, UsageError)):
                readable += (_name(one, file) for one in result)
            elif isinstance(result, DamagedInput):
                first = first or result
                unusable.append(Source(str(path), _guess_kind(path), "unused", warnings=(str(result),)))
            elif named:
                raise result
            else:
                first = first or (result if isinstance(result, InputError) else None)
                unusable.append(Source(str(path), "unknown", "skipped", warnings=(str(result),)))
    if not readable:
        raise first or InputError("no input given")
    return Inputs(
        tuple(item for item in readable if isinstance(item, Reading)),
        tuple(unusable),
        tuple(item for item in readable if isinstance(item, WaitMatrix)),
        tuple(item for item in readable if isinstance(item, FlightDump)),
        tuple(item for item in readable if isinstance(item, LedgerFile)),
    )


def _read_all(paths: Sequence[Path], jobs: int | None, stack: ExitStack, patterns: str) -> Iterable[Result]:
    """Read one by one, so that an interrupt ends it at once, or several at a time; what has not begun is given up.

    Large torch traces are read in processes of their own, for Python reads them event by event. All else spends its
    time outside of Python, which threads share; where nobody asked, they share bundles only, each of which is read in
    a moment.
    """
    read = partial(_try_reading, patterns=patterns)
    slow = [path for path in paths if path != STDIN and _is_slow(path)]
    asked = jobs or os.cpu_count() or 1
    if len(slow) > 1 and asked > 1 and sum(path.stat().st_size for path in slow) >= _WORTH_PROCESSES_BYTES:
        workers = ProcessPoolExecutor(min(asked, len(slow)), get_context("spawn"), _end_at_interrupt)
        stack.callback(workers.shutdown, cancel_futures=True)
        begun = {path: workers.submit(read, path) for path in slow}
        return (_await(begun[path], partial(read, path)) if path in begun else read(path) for path in paths)
    if asked <= 1 or (jobs is None and not _are_many_bundles(paths)):
        return map(read, paths)
    pool = ThreadPoolExecutor(asked)
    stack.callback(pool.shutdown, cancel_futures=True)
    return pool.map(read, paths)


def _end_at_interrupt() -> None:
    """Let a process end at Ctrl-C without a word; what started it tells the user."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _is_slow(path: Path) -> bool:
    try:
        return sniff(path) == TORCH_JSON
    except (InputError, UsageError):
        return False


def _are_many_bundles(paths: Sequence[Path]) -> bool:
    """Tell whether there are bundles only, so many or so large that threads read them faster."""
    if len(paths) < 2 or not all(path != STDIN and is_bundle(path) for path in paths):
        return False
    return sum(path.stat().st_size for path in paths if path.exists()) >= _WORTH_THREADS_BYTES


def _await(reading: Future[Result], read: Callable[[], Result]) -> Result:
    """Return what a process read; a process that was killed, perhaps for its memory, is stood in for."""
    try:
        return reading.result()
    except BrokenProcessPool:
        return read()


def _guess_kind(path: Path) -> str:
    """Say what a damaged file was meant to be; most are exports cut short."""
    if is_bundle(path):
        return DIGEST
    try:
        return sniff(path)
    except (InputError, UsageError):
        return NSYS_SQLITE


def _try_reading(path: Path, patterns: str) -> Result:
    """Read one file; what is wrong with it is for the caller to weigh."""
    try:
        if is_bundle(path):
            return read_digests(path, patterns)
        return (read_ledger_file(path) if path == STDIN else READERS[sniff(path)](path),)
    except (InputError, UsageError) as error:
        return error


def _name(result: Readable, file: NamedPath) -> Readable:
    """Give what was read the target and the moment that the user said."""
    if file.name is None:
        return result
    if isinstance(result, LedgerFile):
        return replace(result, name=file.name, at_s=file.at_s)
    mend = "give it without a name"
    raise UsageError("only metrics, load answers and logs of an engine can be named", where=str(file.path), mend=mend)


def list_files(given: Sequence[Path]) -> list[tuple[NamedPath, bool]]:
    """List the files and export folders to read, and whether the user named each one.

    A folder that holds none stands for itself, to be refused with what it holds instead.
    """
    files: list[tuple[NamedPath, bool]] = []
    for one in map(split_named, given):
        path = one.path
        if path == STDIN or is_export_folder(path):
            files.append((one, True))
        elif path.is_dir():
            if one.at_s is not None:
                mend = "say it of each file: NAME@SECONDS=FILE"
                raise UsageError("a folder is of no one moment", where=str(path), mend=mend)
            try:
                found = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
            except OSError as error:
                raise InputError(f"cannot list the folder ({error.strerror})", where=str(path)) from error
            kept = [(replace(one, path=entry), False) for entry in filter(_may_be_input, found)]
            files += kept or [(one, False)]
        elif not path.exists() and not path.is_symlink():
            raise UsageError("no such file or folder", where=str(path))
        else:
            files.append((one, True))
    return files


def _may_be_input(path: Path) -> bool:
    """Say whether an entry of a folder is worth reading; a closed folder is, for what it hides may be a rank."""
    return not path.is_dir() or is_export_folder(path) or not os.access(path, os.R_OK | os.X_OK)
