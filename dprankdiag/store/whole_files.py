"""Write a file whole or not at all, whatever ends the program meanwhile."""

from __future__ import annotations

import os
import secrets
import tempfile
from contextlib import suppress
from pathlib import Path

_NO_NAME = getattr(os, "O_TMPFILE", None)
"""Source: open(2), O_TMPFILE: a file without a name, gone with the process that made it unless it is linked."""


def replace_file(path: Path, content: bytes) -> None:
    """Write a file and move it to its place when it is complete.

    A reader sees the old file or the whole new one. Nothing is left behind on failure; where files without a name are
    supported (Linux, most file systems), nothing is left behind either by a process that is killed while it writes.

    Raises:
        OSError: the folder cannot be written, or the disk is full.
    """
    if not _write_nameless(path, content):
        _write_beside(path, content)


def _write_nameless(path: Path, content: bytes) -> bool:
    """Write into a file without a name and give it one when it is complete; False where there is no such thing."""
    descriptor = _open_nameless(path.parent)
    if descriptor is None:
        return False
    # Under a name of its own first, because a link never replaces what is there.
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        _write(descriptor, content)
        try:
            # A folder is named, though the path needs none, because only then Python lets the link be followed.
            os.link(f"/proc/self/fd/{descriptor}", temporary, src_dir_fd=descriptor, follow_symlinks=True)
        except OSError:
            return False
    finally:
        os.close(descriptor)
    _move(temporary, path)
    return True


def _open_nameless(folder: Path) -> int | None:
    """Open a file without a name in a folder; None where there is no such thing."""
    if _NO_NAME is None or not os.path.isdir("/proc/self/fd"):
        return None
    try:
        return os.open(folder, os.O_WRONLY | _NO_NAME | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _write_beside(path: Path, content: bytes) -> None:
    """Write under a name of its own beside the target."""
    descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    temporary = Path(name)
    try:
        try:
            _write(descriptor, content)
        finally:
            os.close(descriptor)
        os.chmod(temporary, _default_mode())
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _move(temporary, path)


def _write(descriptor: int, content: bytes) -> None:
    """Write everything to the disk itself."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
    os.fsync(descriptor)


def _move(temporary: Path, path: Path) -> None:
    try:
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def _default_mode() -> int:
    """Return the permissions a new file gets; the temporary file is private until then."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
