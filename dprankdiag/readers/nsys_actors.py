"""Find out which rows belong to which process and device.

The upper 40 bits of a globalPid or globalTid name the process (hardware, VM, pid); `deviceId` is the CUDA ordinal
inside that process, so a GPU is only known by both together. Source: Nsight Systems User Guide 2026.4, "SQLite
schema reference", common event fields (globalTid packing).
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from dprankdiag.readers.base import Array

PID_BITS = 24
_PID_MASK = 0xFFFFFF
DEVICE_BITS = 16
NO_DEVICE = (1 << DEVICE_BITS) - 1


def process_keys(global_ids: Array) -> Array:
    """Return the process of globalPids or globalTids (int64), comparable between both."""
    return global_ids >> PID_BITS


def pair_keys(global_pids: Array, devices: Array) -> Array:
    """Return one int64 key for each (process, device)."""
    return (process_keys(global_pids) << DEVICE_BITS) | (devices & NO_DEVICE)


def thread_ids(global_tids: Array) -> Array:
    """Return the operating-system thread ids of globalTids."""
    return global_tids & _PID_MASK


def split_thread(global_tid: int) -> tuple[int, int]:
    """Return (process key, thread id) of one globalTid."""
    return global_tid >> PID_BITS, global_tid & _PID_MASK


def pid_of(process_key: int) -> int:
    """Return the process id inside a process key."""
    return process_key & _PID_MASK


class ActorIndex:
    """The actors of a file: (process, device) pairs ordered by pid, then device.

    Attributes:
        pairs: `(n_actors,)` int64 pair keys in actor order.
    """

    def __init__(self, pairs: Iterable[int]) -> None:
        ordered = sorted(pairs, key=lambda pair: (pid_of(pair >> DEVICE_BITS), pair))
        self.pairs = np.array(ordered, np.int64)
        processes = self.pairs >> DEVICE_BITS
        self._pair_order = np.argsort(self.pairs)
        self._processes, self._first = np.unique(processes, return_index=True)

    @classmethod
    def of_processes(cls, keys: Iterable[int]) -> ActorIndex:
        """Make actors of processes whose devices are unknown."""
        return cls((key << DEVICE_BITS) | NO_DEVICE for key in keys)

    def __len__(self) -> int:
        return len(self.pairs)

    def process_key(self, actor: int) -> int:
        """Return the process key of an actor."""
        return int(self.pairs[actor]) >> DEVICE_BITS

    def device(self, actor: int) -> int | None:
        """Return the device of an actor, None if unknown."""
        device = int(self.pairs[actor]) & NO_DEVICE
        return None if device == NO_DEVICE else device

    def find_pairs(self, pairs: Array) -> Array:
        """Return the int16 actor of every pair key, -1 where it is none."""
        if not len(self.pairs):
            return np.full(len(pairs), -1, np.int16)
        ordered = self.pairs[self._pair_order]
        place = np.minimum(np.searchsorted(ordered, pairs), len(ordered) - 1)
        return np.where(ordered[place] == pairs, self._pair_order[place], -1).astype(np.int16)

    def find_processes(self, keys: Array) -> Array:
        """Return the int16 first actor of every process key, -1 where the process has none."""
        if not len(self.pairs):
            return np.full(len(keys), -1, np.int16)
        place = np.minimum(np.searchsorted(self._processes, keys), len(self._processes) - 1)
        return np.where(self._processes[place] == keys, self._first[place], -1).astype(np.int16)

    def find_device_rows(self, global_pids: Array, devices: Array, *, by_process: bool = False) -> Array:
        """Return the actor of rows on a device, -1 where it is none.

        Args:
            global_pids: process of each row.
            devices: device of each row.
            by_process: where the device is no actor's, take the first actor of the process. Files without device
                actors always go by the process.
        """
        actors = self.find_pairs(pair_keys(global_pids, devices))
        if by_process or any(self.device(actor) is None for actor in range(len(self))):
            actors = np.where(actors < 0, self.find_processes(process_keys(global_pids)), actors)
        return actors
