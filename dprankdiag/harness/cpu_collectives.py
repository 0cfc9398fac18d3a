"""Collectives in which real processes of one host wait for each other: over sockets in a ring, or torch's gloo."""

from __future__ import annotations

import os
import socket
from typing import Protocol

import numpy as np

from dprankdiag.harness.events import Array

MOST_BYTES = 32_768
"""A message this long fits into every socket's buffer, so that all ranks may send before any receives."""

PATIENCE_S = 60.0
"""How long a rank waits for its peers before it gives up."""


class Collectives(Protocol):
    """Meetings of all ranks; each call returns when every rank's part has come."""

    def all_gather(self, own: Array) -> Array:
        """Give every rank's `(n,)` float64 values: `(ranks, n)`."""

    def reduce_scatter(self, parts: Array) -> Array:
        """Add up what all ranks have for this one, `parts` being `(ranks, n)` float64: `(n,)`."""

    def close(self) -> None:
        """Leave the group."""


class Ring:
    """Collectives over a ring of stream sockets, in ranks - 1 turns: each rank sends to the next one only."""

    def __init__(self, rank: int, ranks: int, to_next: socket.socket, from_last: socket.socket) -> None:
        self.rank, self.ranks = rank, ranks
        self._to_next, self._from_last = to_next, from_last
        for link in (to_next, from_last):
            link.settimeout(PATIENCE_S)

    def all_gather(self, own: Array) -> Array:
        """Pass on what came last, beginning with the own part."""
        rows = np.empty((self.ranks, len(own)))
        rows[self.rank] = own
        for turn in range(self.ranks - 1):
            self._send(rows[(self.rank - turn) % self.ranks])
            rows[(self.rank - turn - 1) % self.ranks] = self._receive(len(own))
        return rows

    def reduce_scatter(self, parts: Array) -> Array:
        """Add the own part to each sum that passes; the last one is this rank's."""
        total: Array = parts[(self.rank - 1) % self.ranks]
        for turn in range(self.ranks - 1):
            self._send(total)
            total = self._receive(parts.shape[1]) + parts[(self.rank - turn - 2) % self.ranks]
        return total

    def close(self) -> None:
        """Close both links."""
        self._to_next.close()
        self._from_last.close()

    def _send(self, values: Array) -> None:
        if values.nbytes > MOST_BYTES:
            raise ValueError(f"a message of {values.nbytes} bytes, at most {MOST_BYTES} can be sent")
        self._to_next.sendall(np.ascontiguousarray(values).data.cast("B"))

    def _receive(self, count: int) -> Array:
        values = np.empty(count)
        left = values.data.cast("B")
        while left:
            came = self._from_last.recv_into(left)
            if not came:
                raise ConnectionError(f"the rank before rank {self.rank} has gone")
            left = left[came:]
        return values


class Gloo:
    """Collectives of `torch.distributed` with its gloo backend, over the loopback device.

    A reduce-scatter is an exchange and a sum: not every release of gloo has one of its own.
    """

    def __init__(self, rank: int, ranks: int, rendezvous: str = "", backends: str = "gloo") -> None:
        """Join the group of a rendezvous, or that which torchrun's variables tell of."""
        from datetime import timedelta

        if int(os.environ.get("LOCAL_WORLD_SIZE", ranks)) == ranks:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
        import torch
        import torch.distributed as distributed

        torch.set_num_threads(1)
        self.ranks = ranks
        self._torch, self._distributed = torch, distributed
        distributed.init_process_group(
            backends,
            init_method=rendezvous or "env://",
            rank=rank,
            world_size=ranks,
            timeout=timedelta(seconds=PATIENCE_S),
        )

    def all_gather(self, own: Array) -> Array:
        """Gather with `all_gather`."""
        rows = np.empty((self.ranks, len(own)))
        self._distributed.all_gather(list(self._torch.from_numpy(rows)), self._torch.from_numpy(own))
        return rows

    def reduce_scatter(self, parts: Array) -> Array:
        """Exchange with `all_to_all_single`, then add up."""
        came = np.empty_like(parts)
        self._distributed.all_to_all_single(self._torch.from_numpy(came), self._torch.from_numpy(parts))
        total: Array = came.sum(axis=0)
        return total

    def close(self) -> None:
        """Destroy the process group."""
        self._distributed.destroy_process_group()


def link_ring(ranks: int) -> list[tuple[socket.socket, socket.socket]]:
    """Connect a ring: of each rank the socket to the next one and that from the last."""
    pairs = [socket.socketpair() for _ in range(ranks)]
    return [(pairs[rank][0], pairs[rank - 1][1]) for rank in range(ranks)]
