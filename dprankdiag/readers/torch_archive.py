"""Read what torch.save wrote: an archive of one pickle and the numbers of its tensors, nothing of which is run."""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.readers.safe_pickle import MOST_BYTES, StoredTensor, read_pickle

MOST_TENSOR_BYTES = 1 << 31
"""Larger dumps than this are not what an engine writes for some thousand steps."""

_PICKLE = "data.pkl"
_BROKEN = (zipfile.BadZipFile, zlib.error, NotImplementedError, RuntimeError, ValueError, EOFError)
"""What reading an archive raises that is cut, or packed as none of ours is."""

_KINDS = {
    "ByteStorage": "u1",
    "CharStorage": "i1",
    "ShortStorage": "i2",
    "IntStorage": "i4",
    "LongStorage": "i8",
    "HalfStorage": "f2",
    "FloatStorage": "f4",
    "DoubleStorage": "f8",
    "BoolStorage": "?",
}


@dataclass(frozen=True, slots=True)
class TorchArchive:
    """A file of torch.save: its value, with tensors that are read when asked for."""

    path: Path
    value: Any
    prefix: str
    order: str

    def load(self, tensor: StoredTensor) -> np.ndarray[Any, Any]:
        """Read the numbers of a tensor.

        Raises:
            InputError: of a kind that counts are not stored in.
            DamagedInput: its numbers are not all there.
        """
        kind = _KINDS.get(tensor.kind)
        if kind is None:
            raise InputError(f"a tensor of {tensor.kind}, expected whole numbers", where=str(self.path))
        dtype = np.dtype(kind if kind in ("u1", "i1", "?") else self.order + kind)
        needed = _count_needed(tensor)
        # A stride of 0 shows one number as often as it likes.
        most = max(needed, math.prod(tensor.size)) * dtype.itemsize
        if len(tensor.size) != len(tensor.stride) or needed < 0 or most > MOST_TENSOR_BYTES:
            raise DamagedInput(f"a tensor of shape {tensor.size} that cannot be", where=str(self.path))
        with zipfile.ZipFile(self.path) as archive:
            content = _read_member(archive, f"{self.prefix}data/{tensor.key}", MOST_TENSOR_BYTES, self.path)
        flat = np.frombuffer(content, dtype, count=len(content) // dtype.itemsize)
        if needed > len(flat):
            raise DamagedInput("a tensor's numbers are cut short", where=str(self.path))
        strides = tuple(step * dtype.itemsize for step in tensor.stride)
        return np.lib.stride_tricks.as_strided(flat[tensor.offset :], tensor.size, strides, writeable=False).copy()


def _count_needed(tensor: StoredTensor) -> int:
    """Count the numbers of the storage up to the last that a tensor shows; -1 where it cannot be."""
    if tensor.offset < 0 or any(size < 0 for size in tensor.size) or any(step < 0 for step in tensor.stride):
        return -1
    if 0 in tensor.size:
        return tensor.offset
    return tensor.offset + 1 + sum((n - 1) * step for n, step in zip(tensor.size, tensor.stride, strict=False))


def is_torch_archive(path: Path) -> bool:
    """Tell whether a file is an archive with a pickle in it, as torch.save writes."""
    try:
        with zipfile.ZipFile(path) as archive:
            return any(name.endswith(f"/{_PICKLE}") for name in archive.namelist())
    except (OSError, *_BROKEN):
        return False


def open_torch_archive(path: Path) -> TorchArchive:
    """Open a file of torch.save.

    Raises:
        InputError: it names more than tensors, or was written by a release before archives.
        DamagedInput: it is no whole archive.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            name = next((name for name in archive.namelist() if name.endswith(f"/{_PICKLE}")), None)
            if name is None:
                raise InputError("an archive without a pickle, expected what torch.save writes", where=str(path))
            prefix = name.removesuffix(_PICKLE)
            pickled = _read_member(archive, name, MOST_BYTES, path)
            order_name = f"{prefix}byteorder"
            told = b"little"
            if order_name in archive.namelist():
                told = _read_member(archive, order_name, 16, path)
    except _BROKEN as error:
        raise DamagedInput(f"no whole archive of torch.save ({error})", where=str(path)) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from error
    return TorchArchive(path, read_pickle(pickled, str(path)), prefix, ">" if told.strip() == b"big" else "<")


def _read_member(archive: zipfile.ZipFile, name: str, most: int, path: Path) -> bytes:
    """Read a member that is as large as it says, and not larger than expected.

    Raises:
        DamagedInput: it is absent, packed wrongly, or larger than `most`.
    """
    try:
        info = archive.getinfo(name)
        if info.file_size > most:
            raise DamagedInput(f"{name} of {info.file_size} bytes, at most {most} are read", where=str(path))
        return archive.read(info)
    except (KeyError, *_BROKEN) as error:
        raise DamagedInput(f"{name} cannot be read ({error})", where=str(path)) from error
