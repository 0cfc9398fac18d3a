"""How long kernels and collectives take in the queueing physics: tables, powers, and queues before what serves them.

Dense products follow a table of times as a profiler would have measured them, with half-empty last waves told in part.
Experts are jobs that wait for processors: the rank is done when the largest of them is. Data is served by a cache as
far as it fits, then by memory. Collectives wait for links of which others take a share.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.events import Array
from dprankdiag.harness.world import World

Table = tuple[tuple[float, float], ...]

_DENSE: Table = ((1, 1.0), (32, 1.03), (96, 1.18), (192, 1.62), (512, 3.4), (2_048, 11.9), (16_384, 91.0))
"""Rows and time against that of one row."""
_DECODE: Table = (
    (256, 5.5), (2_048, 8.0), (8_192, 14.5), (32_768, 36.0), (131_072, 118.0), (524_288, 442.0), (4_194_304, 3_480.0),
)  # fmt: skip
"""Tokens that decode attention reads and its time in µs."""

_TILE_ROWS, _SERVERS = 48, 114
_LAST_WAVE = 0.3
_READS_WEIGHTS, _GROWS = 220.0, 1.5
_CACHED_TOKENS, _CACHE_GAIN = 12_000.0, 0.3
_RAGGED, _RAGGED_TOKENS = 0.05, 6_144
_LIGHT_ROWS, _LIGHT_POWER = 520.0, 0.85
_EXPERT_READ_NS, _EXPERT_ROW_NS, _CACHED_EXPERTS, _EXPERT_GAIN = 4_400.0, 150.0, 10.0, 0.2
_EXPERT_SERVERS, _EXPERT_COST = 6.0, 2.4
"""Experts that are served at a time."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What a deployment's hardware does, each a factor on time or a rate, drawn by its seed.

    Attributes:
        dense, attention, experts, light: factors on the tables' times.
        link_gb_s, network_gb_s: one way to a GPU of the node and to another node.
        hidden: elements of a row.
        call_ns, think_ns: of a launch call, and from there to the next one.
    """

    dense: float
    attention: float
    experts: float
    light: float
    link_gb_s: float
    network_gb_s: float
    hidden: int
    call_ns: float
    think_ns: float


@dataclass(frozen=True, slots=True)
class Service:
    """Time in ns on a chip of ordinary speed, and the share of it that is spent on memory; arrays that broadcast."""

    time_ns: Array
    memory_share: Array

    def last(self, slow_compute: Array, slow_memory: Array) -> Array:
        """Stretch the time on a chip whose arithmetic and memory take so many times as long."""
        stretched: Array = self.time_ns * slow_compute ** (1 - self.memory_share) * slow_memory**self.memory_share
        return stretched


def draw_machine(world: World) -> Machine:
    """Draw the hardware of a world."""
    random = open_stream(world.seed, "queueing", "machine")
    dense, attention, experts, light = np.exp(0.22 * random.standard_normal(4)).tolist()
    return Machine(
        dense,
        attention,
        experts,
        light,
        link_gb_s=float(random.choice([180.0, 320.0, 600.0])),
        network_gb_s=float(random.choice([24.0, 40.0, 80.0])),
        hidden=int(random.choice([3_072, 5_120, 6_144])),
        call_ns=float(random.uniform(2_000, 3_600)),
        think_ns=float(random.uniform(3_000, 15_000)),
    )


def read_table(table: Table, at: Array) -> Array:
    """Read a table between its points, straight on logarithmic axes; below the first point its value holds."""
    points, values = np.log(np.asarray(table, float)).T
    last_slope = (values[-1] - values[-2]) / (points[-1] - points[-2])
    where = np.log(np.maximum(at, table[0][0]))
    beyond = np.maximum(where - points[-1], 0.0)
    read: Array = np.exp(np.interp(where, points, values) + last_slope * beyond)
    return read


def multiply(machine: Machine, rows: Array, base_us: float) -> Service:
    """Multiply rows by weights; a last wave of tiles that is nearly empty takes part of a full one's time."""
    waves = np.maximum(np.ceil(rows / _TILE_ROWS), 1) * 40 / _SERVERS
    ragged = (np.ceil(waves) / waves) ** _LAST_WAVE
    time = 1e3 * base_us * machine.dense * read_table(_DENSE, rows) * ragged
    return Service(time, 1 / (1 + (rows / _READS_WEIGHTS) ** _GROWS))


def attend(machine: Machine, tokens: Array, parts: int, drafts: int) -> Service:
    """Attend to so many tokens of a cache; the first ones are served by the cache that all processors share.

    Args:
        machine: where.
        tokens: of all requests that decode; a rank without any runs the kernel empty.
        parts: GPUs that share the heads.
        drafts: tokens a request computes.
    """
    hit = _CACHED_TOKENS / (_CACHED_TOKENS + tokens)
    ragged = 1 + _RAGGED * (1 - tokens % _RAGGED_TOKENS / _RAGGED_TOKENS)
    heads = 0.3 + 0.7 / parts
    time = 1e3 * machine.attention * read_table(_DECODE, tokens) * (1 - _CACHE_GAIN * hit) * ragged * heads
    return Service(time * drafts**0.4, 0.9 - 0.5 * hit)


def attend_prompt(machine: Machine, tokens: Array, context: Array, parts: int) -> Service:
    """Attend from a prompt's computed tokens to all before them."""
    time = 1e3 * machine.attention * (9.0 + 2.1e-5 * tokens**1.05 * context**0.9 / parts)
    return Service(time, np.full(1, 0.12))


def pass_over(machine: Machine, rows: Array, base_us: float) -> Service:
    """Read and write rows, many of which are served at a time."""
    time = 1e3 * base_us * machine.light * (1 + (rows / _LIGHT_ROWS) ** _LIGHT_POWER)
    return Service(time, rows / (rows + _LIGHT_ROWS))


def serve_experts(machine: Machine, asked: Array, worked: Array, largest: Array, share: float) -> Service:
    """Run experts as jobs that a few servers take one after the other; the last ends at most a whole job later.

    Source: Graham, Bounds for certain multiprocessing anomalies, Bell System Technical Journal 45 (1966): the sum over
    the servers plus the largest times (1 - 1 / servers); half of that last part is taken.

    Args:
        machine: where.
        asked: experts with any token.
        worked: sum of their tokens' work, in tokens.
        largest: that of the one with most.
        share: of the whole expert's time that this kernel takes.
    """
    read_ns = _EXPERT_READ_NS * (1 - _EXPERT_GAIN * _CACHED_EXPERTS / (_CACHED_EXPERTS + asked))
    jobs_ns = read_ns * asked + _EXPERT_ROW_NS * worked
    last_ns = (1 - 1 / _EXPERT_SERVERS) / 2 * (read_ns * np.minimum(asked, 1) + _EXPERT_ROW_NS * largest)
    time = 2_600.0 + share * machine.experts * _EXPERT_COST * (jobs_ns / _EXPERT_SERVERS + last_ns)
    return Service(time, read_ns * asked / np.maximum(jobs_ns, 1.0))


def transfer(machine: Machine, sent_bytes: Array, members: int, far: bool, busy: Array) -> Array:
    """Give the time of a collective in ns, from the last arrival: latency, then bytes over a link that others use too.

    Source: waiting in an open queue grows as 1 / (1 - utilisation); latency as the square root of the members, as in a
    grid.
    """
    rate = machine.network_gb_s if far else machine.link_gb_s
    latency = (5_200.0 if far else 2_300.0) + 900.0 * np.sqrt(members)
    taken: Array = latency + sent_bytes / rate / (1 - busy)
    return taken


def pad(most: Array, sizes: Sequence[int] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)) -> Array:
    """Pad a number of requests to the next captured size, above the largest to whole multiples of it."""
    captured = np.asarray(sizes)
    place = np.minimum(np.searchsorted(captured, most), len(captured) - 1)
    padded: Array = np.where(most > captured[-1], -(-most // captured[-1]) * captured[-1], captured[place])
    return padded
