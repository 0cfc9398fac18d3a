"""Keep the C library from holding on to memory that long arrays have given back."""

from __future__ import annotations

import ctypes

_M_MMAP_THRESHOLD = -3
_LARGE_BYTES = 1 << 22


def return_large_arrays() -> None:
    """Have arrays of four mebibytes and more go back to the system as soon as they are freed.

    glibc raises its own threshold with every large block it frees, after which the kernels of a rank stay with the
    process when they are spent. Does nothing where the C library has no such setting.

    Source: mallopt(3), M_MMAP_THRESHOLD: setting it also turns the dynamic threshold off.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
