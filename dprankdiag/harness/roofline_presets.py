"""Chips and models by their published shapes, for the roofline physics."""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.harness.draws import open_stream
from dprankdiag.harness.world import World


@dataclass(frozen=True, slots=True)
class Chip:
    """What a GPU and the host beside it can do.

    Attributes:
        processors: streaming multiprocessors.
        half_tflops, byte_tflops: peak of dense matrix products in 16 and in 8 bits.
        memory_gb_s, link_gb_s, network_gb_s: of device memory; one way to a GPU of the node, and to another node.
        link_ns, network_ns: latency of a hop.
        floor_ns: of the shortest kernel.
        call_ns: of a launch call.
    """

    processors: int
    half_tflops: float
    byte_tflops: float
    memory_gb_s: float
    link_gb_s: float
    network_gb_s: float = 50.0
    link_ns: int = 1_600
    network_ns: int = 4_800
    floor_ns: int = 1_900
    call_ns: int = 3_100


@dataclass(frozen=True, slots=True)
class Model:
    """The shapes of a mixture-of-experts model.

    Attributes:
        heads: query heads.
        query_width, value_width: elements of a query and of a value head where prompts are computed.
        pair_width: multiply-adds a head spends on one query and one key of the cache when it decodes.
        cache_heads: heads of the cache, which GPUs that share attention can share.
        cache_width: elements of the projected keys and values of a token, in 16 bits.
        query_rank: width of compressed queries; 0 where queries are projected at once.
        experts, top_k, expert_width, shared: routed experts, how many a token takes, their inner width, shared ones.
        weight_bytes: bytes a weight.
    """

    hidden: int
    heads: int
    query_width: int
    value_width: int
    pair_width: int
    cache_heads: int
    cache_width: int
    query_rank: int
    experts: int
    top_k: int
    expert_width: int
    shared: int
    vocabulary: int
    weight_bytes: int


CHIPS: dict[str, Chip] = {
    "h100": Chip(132, 989, 1_979, 3_350, 450),
    "h200": Chip(132, 989, 1_979, 4_800, 450),
    "h20": Chip(78, 148, 296, 4_000, 450, call_ns=3_800),
    "b200": Chip(148, 2_250, 4_500, 8_000, 900, link_ns=1_300, floor_ns=1_600, call_ns=2_700),
}
"""Source: data sheets of NVIDIA H100 SXM, H200 SXM, H20 and HGX B200 (dense rates); 400 Gb/s of network a GPU."""


def _latent(hidden: int, heads: int, experts: int, vocabulary: int) -> Model:
    """Describe a model with multi-head latent attention: 512 latent and 64 rotary elements a token in 16 bits."""
    width = 512 + 64
    return Model(
        hidden, heads, 192, 128, width + 512, 1, width, 1_536, experts, 8, 2_048, 1, vocabulary, weight_bytes=1
    )


def _grouped(
    hidden: int, heads: int, cache_heads: int, width: int, experts: int, top_k: int, inner: int, vocabulary: int,
    *, shared: int = 0, weight_bytes: int = 2,
) -> Model:  # fmt: skip
    """Describe a model with grouped-query attention and a cache in 16 bits."""
    keys = 2 * cache_heads * width
    return Model(
        hidden, heads, width, width, 2 * width, cache_heads, keys, 0, experts, top_k, inner, shared, vocabulary,
        weight_bytes,
    )  # fmt: skip


MODELS: dict[str, Model] = {
    "deepseek-v3": _latent(7_168, 128, 256, 129_280),
    "kimi-k2": _latent(7_168, 64, 384, 163_840),
    "qwen3-235b": _grouped(4_096, 64, 4, 128, 128, 8, 1_536, 151_936),
    "qwen3-30b": _grouped(2_048, 32, 4, 128, 128, 8, 768, 151_936),
    "glm-4.5": _grouped(5_120, 96, 8, 128, 160, 8, 1_536, 151_552, shared=1, weight_bytes=1),
    "gpt-oss-120b": _grouped(2_880, 64, 8, 64, 128, 4, 2_880, 201_088),
}
"""Source: `config.json` of DeepSeek-V3, Kimi-K2, Qwen3-235B-A22B, Qwen3-30B-A3B, GLM-4.5 (8 bits) and gpt-oss-120b."""


def choose_chip(world: World) -> Chip:
    """Look up the chip of a world, or draw one by its seed."""
    drawn = str(open_stream(world.seed, "roofline", "chip").choice(list(CHIPS)))
    return CHIPS[drawn if world.chip == "drawn" else world.chip]


def choose_model(world: World) -> Model:
    """Look up the model of a world, or draw one by its seed."""
    drawn = str(open_stream(world.seed, "roofline", "model").choice(list(MODELS)))
    return MODELS[drawn if world.model == "drawn" else world.model]
