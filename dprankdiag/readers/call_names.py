"""What the name of a runtime or driver call says."""

from __future__ import annotations

import re

_BLOCKING = re.compile(
    r"[sS]ynchroni[sz]e|^(?:cu(?:da)?|hip)(?:Malloc|Free|HostAlloc|HostMalloc|HostRegister|HostUnregister|Memcpy)"
    r"|^cuMem(?:Alloc|Free|Host|cpy|Create|Map|Unmap|Release)|ModuleLoad|LibraryLoad"
)
_NOT_BLOCKING = re.compile(r"Async|EventQuery|StreamQuery")
_GRAPH_LAUNCH = re.compile(r"GraphLaunch")


def is_blocking(name: str) -> bool:
    """Say whether a runtime or driver call of this name blocks the thread that makes it."""
    return bool(_BLOCKING.search(name)) and not _NOT_BLOCKING.search(name)


def launches_graph(name: str) -> bool:
    """Say whether a call of this name launches a CUDA graph."""
    return bool(_GRAPH_LAUNCH.search(name))
