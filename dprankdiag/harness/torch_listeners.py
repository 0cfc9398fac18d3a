"""Who is told of the ranges of a rank that has torch, and who records them: NVTX, and the torch profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dprankdiag.harness.run_steps import Marks


class Nvtx:
    """Tells ranges to Nsight Systems, by the module `nvtx` or by torch's own way to it."""

    def __init__(self, push: Callable[[str], object], pop: Callable[[], object]) -> None:
        self._push, self._pop = push, pop

    def push(self, text: str) -> None:
        """Open a range."""
        self._push(text)

    def pop(self) -> None:
        """Close the last one."""
        self._pop()


class Annotations:
    """Tells ranges to the torch profiler."""

    def __init__(self) -> None:
        self._open: list[Any] = []

    def push(self, text: str) -> None:
        """Open a range."""
        from torch.profiler import record_function

        self._open.append(record_function(text))
        self._open[-1].__enter__()

    def pop(self) -> None:
        """Close the last one."""
        self._open.pop().__exit__(None, None, None)


def listen(*, cuda: bool = False, profile: bool = False) -> tuple[Marks, ...]:
    """List the listeners of one thread.

    Args:
        cuda: torch has a GPU, and so NVTX; else the module `nvtx` is told, where it is installed.
        profile: the torch profiler runs.
    """
    found: list[Marks] = []
    if cuda:
        nvtx = import_module("torch.cuda.nvtx")
        found.append(Nvtx(nvtx.range_push, nvtx.range_pop))
    elif find_spec("nvtx"):
        nvtx = import_module("nvtx")
        found.append(Nvtx(nvtx.push_range, nvtx.pop_range))
    if profile:
        found.append(Annotations())
    return tuple(found)


@contextmanager
def profile_run(path: Path | None, *, cuda: bool = False, all_threads: bool = False) -> Iterator[None]:
    """Let the torch profiler write what happens inside as a trace.

    Args:
        path: of the trace; None to let it watch in vain.
        cuda: record kernels too.
        all_threads: also ranges of threads that are not this one.

    Raises:
        ValueError: this torch cannot record other threads.
    """
    from torch.profiler import ProfilerActivity, profile

    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if cuda else [])]
    options: dict[str, Any] = {}
    if all_threads:
        config = import_module("torch._C._profiler")._ExperimentalConfig
        try:
            options["experimental_config"] = config(profile_all_threads=True)
        except TypeError:
            raise ValueError("the profiler of this torch cannot record all threads; take a newer one") from None
    with profile(activities=activities, **options) as profiler:
        yield
    if path is not None:
        profiler.export_chrome_trace(str(path))


@contextmanager
def capture_run() -> Iterator[None]:
    """Open the window in which `nsys profile --capture-range=cudaProfilerApi` records."""
    profiler = import_module("torch.cuda.profiler")
    profiler.start()
    try:
        yield
    finally:
        profiler.stop()


Recorder = AbstractContextManager[None]
