"""Say what the C library does with memory that arrays have given back: keep what is little, return what is long."""

from __future__ import annotations

import ctypes

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE_BYTES = 1 << 22
_KEPT_BYTES = 1 << 26


def return_large_arrays() -> None:
    """Have arrays of four mebibytes and more go back to the system as soon as they are freed.

    glibc raises its own threshold with every large block it frees, after which the kernels of a rank stay with the
    process when they are spent. Of smaller ones 64 mebibytes stay with the process: to get the same pages from the
    system array after array takes longer than to fill them. Does nothing where the C library has no such settings.

    Source: mallopt(3), M_MMAP_THRESHOLD: setting it also turns the dynamic thresholds off, that of M_TRIM_THRESHOLD as
    well, which is then 128 kibibytes.
    """
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    if set_option is not None:
        set_option(_M_MMAP_THRESHOLD, _LARGE_BYTES)
        set_option(_M_TRIM_THRESHOLD, _KEPT_BYTES)
