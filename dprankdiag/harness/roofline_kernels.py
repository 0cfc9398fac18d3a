"""How long a kernel takes by what it computes and what it moves, and a collective by what it sends.

A kernel's blocks are dealt to the chip's processors in waves, of which the last may be nearly empty; what it reads and
writes takes the time of the memory's bandwidth; it lasts as long as the longer of the two.

Source: Williams, Waterman, Patterson, Roofline (CACM 52, 2009).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.roofline_presets import Chip

TILE_ROWS, TILE_COLUMNS = 64, 128
CACHE_PAGE = 64
"""Tokens of the cache that one block of decode attention reads at a time."""

_PEAK_SHARE = 0.7
_BANDWIDTH_SHARE = 0.85
_MOST_SPLITS = 8
_SHARING_NS = 3_500


@dataclass(frozen=True, slots=True)
class Roof:
    """What limits a kernel, in ns: arithmetic, memory, and what every launch costs; arrays that broadcast."""

    compute_ns: Array
    memory_ns: Array
    floor_ns: float

    def last(self, slow_compute: Array, slow_memory: Array) -> Array:
        """Combine the limits on a chip whose arithmetic and memory take so many times as long."""
        longer: Array = np.maximum(self.compute_ns * slow_compute, self.memory_ns * slow_memory)
        return longer + self.floor_ns * slow_compute


def move_bytes(chip: Chip, moved: Array, floors: float = 1.0) -> Roof:
    """Limit a kernel that only reads and writes."""
    return Roof(np.zeros(1), moved / (chip.memory_gb_s * _BANDWIDTH_SHARE), floors * chip.floor_ns)


def multiply_matrices(chip: Chip, rows: Array, columns: int, depth: int, weight_bytes: int) -> Roof:
    """Limit a matrix product; few tiles are split along the depth so that no processor is without one."""
    tiles = np.maximum(np.ceil(rows / TILE_ROWS), 1) * np.ceil(columns / TILE_COLUMNS)
    splits = np.clip(chip.processors // tiles, 1, _MOST_SPLITS)
    waves = np.ceil(tiles * splits / chip.processors)
    moved = columns * depth * weight_bytes + 2 * rows * (columns + depth)
    compute = waves * _tile_ns(chip, depth, weight_bytes) / splits
    return Roof(compute, moved / (chip.memory_gb_s * _BANDWIDTH_SHARE), float(chip.floor_ns))


def multiply_groups(
    chip: Chip, tokens: Array, touched: Array, tiles: Array, columns: int, depth: int, weight_bytes: int
) -> Roof:
    """Limit the matrix products of a rank's experts.

    Args:
        chip: where.
        tokens: all tokens of the rank's experts.
        touched: experts with any.
        tiles: rows of tiles, each expert's tokens rounded up.
        columns, depth: of one expert's weights.
        weight_bytes: bytes a weight.
    """
    waves = np.ceil(tiles * np.ceil(columns / TILE_COLUMNS) / chip.processors)
    moved = touched * columns * depth * weight_bytes + 2 * tokens * (columns + depth)
    compute = waves * _tile_ns(chip, depth, weight_bytes)
    return Roof(compute, moved / (chip.memory_gb_s * _BANDWIDTH_SHARE), 2.0 * chip.floor_ns)


def _tile_ns(chip: Chip, depth: int, weight_bytes: int) -> float:
    peak = chip.byte_tflops if weight_bytes == 1 else chip.half_tflops
    return 2 * TILE_ROWS * TILE_COLUMNS * depth / (1e3 * peak * _PEAK_SHARE / chip.processors)


def attend_cache(chip: Chip, pages: Array, cache_bytes: float, page_flops: float) -> Roof:
    """Limit decode attention: pages of all requests are dealt to the processors, each with its share of the memory.

    Args:
        chip: where.
        pages: pages of all requests of the rank, each request's last one counted in full.
        cache_bytes: KV bytes a token.
        page_flops: operations a page.
    """
    waves = np.ceil(pages / chip.processors)
    memory = waves * CACHE_PAGE * cache_bytes * chip.processors / (chip.memory_gb_s * _BANDWIDTH_SHARE)
    compute = waves * page_flops * chip.processors / (1e3 * chip.half_tflops * _PEAK_SHARE)
    return Roof(compute, memory, 2.0 * chip.floor_ns)


def attend_prompt(chip: Chip, flops: Array, moved: Array) -> Roof:
    """Limit the attention of prompts: arithmetic over the pairs of tokens, memory over what decoders beside read."""
    compute = flops / (1e3 * chip.half_tflops * _PEAK_SHARE)
    return Roof(compute, moved / (chip.memory_gb_s * _BANDWIDTH_SHARE), 2.0 * chip.floor_ns)


def exchange(chip: Chip, sent_bytes: Array, members: int, across_nodes: bool, *, one_shot: bool = False) -> Array:
    """Give the time of a collective in ns, from the last arrival.

    Args:
        chip: whose links.
        sent_bytes: what one member sends or receives in all.
        members: how many meet.
        across_nodes: some sit in other nodes.
        one_shot: every member reads from every other at once, rather than hop by hop.
    """
    rate = chip.network_gb_s if across_nodes else chip.link_gb_s
    hop = chip.network_ns if across_nodes else chip.link_ns
    hops = 1.0 if one_shot else float(np.log2(max(members, 2)))
    return _SHARING_NS * (0.5 if one_shot else 1.0) + hop * hops + sent_bytes / (rate * _BANDWIDTH_SHARE)
