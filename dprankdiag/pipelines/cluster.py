"""Let the workers of an existing Dask cluster digest the recordings that they see."""

from __future__ import annotations

import logging
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dprankdiag import __version__
from dprankdiag.errors import DprankdiagError, InputError, UsageError
from dprankdiag.pipelines.digest import Digested, digest, list_traces, name_bundles

if TYPE_CHECKING:
    from distributed import Client, Future

CONNECT_S = 15.0
LOOK_S = 2.0
"""Time between two looks at which workers are left."""

GONE_S = 30.0
"""A recording whose last worker is gone for so long, and that no other one sees, is given up."""

MOST_TRIES = 3
"""Workers that may fail on one recording; a recording that kills so many is given up."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A recording as a worker sees it; equal on workers that share it, different where each has a disk of its own.

    Attributes:
        size_bytes, modified_ns: of the file or folder.
    """

    path: str
    size_bytes: int
    modified_ns: int


@dataclass(frozen=True, slots=True)
class Place:
    """What a worker tells of itself: host, version, and the recordings that it sees at each path asked for."""

    host: str
    version: str
    seen: tuple[tuple[Seen, ...], ...]


@dataclass(slots=True)
class _Job:
    """A recording on its way.

    Attributes:
        name: file name of its bundle.
        tries: workers that have been at it.
        gone_s: since when no worker sees it, by the monotonic clock; None while one does.
    """

    seen: Seen
    name: str
    tries: int = 0
    gone_s: float | None = None
    workers: list[str] = field(default_factory=list)


def look_for(paths: Sequence[str]) -> Place:
    """Tell, on a worker, what it sees at each path; a folder stands for its traces."""
    return Place(socket.gethostname(), __version__, tuple(tuple(_list_seen(Path(path))) for path in paths))


def _list_seen(path: Path) -> Iterator[Seen]:
    try:
        for trace in list_traces([path]):
            found = trace.stat()
            yield Seen(str(trace), found.st_size, found.st_mtime_ns)
    except (UsageError, InputError, OSError):
        return


def digest_there(path: str, patterns: bytes | None) -> Digested | DprankdiagError:
    """Digest a recording on a worker; what is wrong with it is a result as well."""
    try:
        if patterns is None:
            return digest(Path(path))
        with tempfile.NamedTemporaryFile(suffix=".toml") as copy:
            copy.write(patterns)
            copy.flush()
            return digest(Path(path), Path(copy.name))
    except (InputError, UsageError) as error:
        return type(error)(error.what, where=f"{socket.gethostname()}: {error.where}", mend=error.mend)


def digest_on_cluster(
    address: str, paths: Sequence[Path], patterns: Path | None = None
) -> Iterator[tuple[str, str, Digested | DprankdiagError]]:
    """Digest recordings on the workers that see them, in the order in which they get done.

    A recording whose worker dies or is lost goes to another one that sees it.

    Yields:
        Path of the recording, name for its bundle, and the bundle or what is wrong.

    Raises:
        UsageError: the package `distributed` is missing, or no scheduler answers.
        InputError: there are no workers, or they lack this version of dprankdiag.
    """
    wanted = [str(path.absolute()) for path in paths]
    content = None if patterns is None else patterns.read_bytes()
    client = _connect(address)
    try:
        places = _look(client, wanted)
        if not places:
            raise InputError("has no workers", where=address, mend="start some: dask worker ADDRESS --nthreads 1")
        for path, seen in zip(wanted, zip(*(place.seen for place in places.values()), strict=True), strict=True):
            if not any(seen):
                yield path, "", InputError("no worker sees a recording there", where=path, mend=_say_shared(places))
        yield from _run(client, wanted, content, _list_jobs(places))
    finally:
        client.close()


def _say_shared(places: dict[str, Place]) -> str:
    hosts = sorted({place.host for place in places.values()})
    shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
    return f"give the path as it is on the workers' hosts ({shown})"


def _connect(address: str) -> Client:
    try:
        from distributed import Client
    except ImportError as error:
        mend = "pip install 'dprankdiag[dask]'"
        raise UsageError("needs the package distributed, which is not installed", where="--dask", mend=mend) from error
    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # other versions there are told by what fails
            return Client(address, timeout=CONNECT_S)
    except (OSError, ValueError, TimeoutError) as error:
        mend = "give the address of the scheduler, such as tcp://HOST:8786"
        raise UsageError(f"no Dask scheduler answers ({_first_line(error)})", where=address, mend=mend) from error


def _look(client: Client, wanted: Sequence[str]) -> dict[str, Place]:
    """Ask every worker what it sees.

    Raises:
        InputError: no worker has this version of dprankdiag.
    """
    told: dict[str, Any] = client.run(look_for, list(wanted), on_error="return")
    places = {worker: place for worker, place in told.items() if isinstance(place, Place)}
    fitting = {worker: place for worker, place in places.items() if place.version == __version__}
    if told and not fitting:
        others = sorted({place.version for place in places.values()})
        have = f"have dprankdiag {', '.join(others)}" if others else "cannot import dprankdiag"
        mend = f"install dprankdiag {__version__} where the workers run"
        raise InputError(f"the workers {have}", where=client.scheduler.address, mend=mend)
    return fitting


def _list_jobs(places: dict[str, Place]) -> list[_Job]:
    """List the recordings that are seen, each once; those of one path on several hosts are named after the hosts."""
    hosts: dict[Seen, str] = {}
    for place in places.values():
        for seen in (one for found in place.seen for one in found):
            hosts.setdefault(seen, place.host)
    paths = [seen.path for seen in hosts]
    own = [
        Path(host, Path(seen.path).name) if paths.count(seen.path) > 1 else Path(seen.path)
        for seen, host in hosts.items()
    ]
    return [_Job(seen, name) for seen, name in zip(hosts, name_bundles(own), strict=True)]


def _run(
    client: Client, wanted: Sequence[str], patterns: bytes | None, jobs: Sequence[_Job]
) -> Iterator[tuple[str, str, Digested | DprankdiagError]]:
    pending: dict[Future[Any], _Job] = {}
    waiting = list(jobs)
    while pending or waiting:
        if waiting:
            waiting = _submit(client, wanted, patterns, waiting, pending)
        for job in [job for job in waiting if job.gone_s is not None and time.monotonic() - job.gone_s > GONE_S]:
            waiting.remove(job)
            yield job.seen.path, job.name, InputError("every worker that saw it is gone", where=job.seen.path)
        for future in _wait(pending):
            job = pending.pop(future)
            job.tries += 1
            if future.status == "finished":
                yield job.seen.path, job.name, future.result()
            elif job.tries < MOST_TRIES:
                waiting.append(job)
            else:
                reason = f"{job.tries} workers failed on it ({_first_line(future.exception())})"
                yield job.seen.path, job.name, InputError(reason, where=job.seen.path, mend="see the workers' logs")
            future.release()
        waiting += _take_stranded(client, pending)


def _submit(
    client: Client,
    wanted: Sequence[str],
    patterns: bytes | None,
    waiting: Sequence[_Job],
    pending: dict[Future[Any], _Job],
) -> list[_Job]:
    """Send each recording to the workers that see it now; return those that none sees."""
    places = _look(client, wanted)
    left = []
    for job in waiting:
        sees = [worker for worker, place in places.items() if any(job.seen in found for found in place.seen)]
        if not sees:
            job.gone_s = time.monotonic() if job.gone_s is None else job.gone_s
            left.append(job)
            continue
        job.gone_s, job.workers = None, sees
        future = client.submit(digest_there, job.seen.path, patterns, workers=sees, pure=False)
        pending[future] = job
    if left:
        time.sleep(LOOK_S)
    return left


def _wait(pending: dict[Future[Any], _Job]) -> list[Future[Any]]:
    """Wait for some to get done, no longer than until the next look."""
    from distributed import wait

    if not pending:
        return []
    try:
        return list(wait(list(pending), timeout=LOOK_S, return_when="FIRST_COMPLETED").done)
    except TimeoutError:
        return []


def _take_stranded(client: Client, pending: dict[Future[Any], _Job]) -> list[_Job]:
    """Take back what waits for workers of which none is left; the scheduler would wait for them for ever."""
    alive = set(client.scheduler_info(n_workers=-1)["workers"])
    stranded = [future for future, job in pending.items() if not alive.intersection(job.workers)]
    for future in stranded:
        future.cancel()
    return [pending.pop(future) for future in stranded]


def _first_line(error: BaseException | None) -> str:
    lines = str(error).splitlines()
    return lines[0] if lines else type(error).__name__
