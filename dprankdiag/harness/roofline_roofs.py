"""What limits every kernel of a step: which shapes it works on, by its key."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dprankdiag.harness.events import Array
from dprankdiag.harness.program import Operation
from dprankdiag.harness.roofline_batches import Work
from dprankdiag.harness.roofline_kernels import (
    CACHE_PAGE,
    Roof,
    attend_cache,
    attend_prompt,
    move_bytes,
    multiply_groups,
    multiply_matrices,
)
from dprankdiag.harness.roofline_presets import Chip, Model
from dprankdiag.harness.roofline_routing import Routing
from dprankdiag.harness.world import World


@dataclass(frozen=True, slots=True)
class Site:
    """Everything the durations of some steps follow from.

    Attributes:
        rows: `(n, ranks)` rows of activations before the gather, those that pad a graph included.
        all_rows: `(n, 1)` rows after it.
        sampled: `(n, ranks)` rows after the last layer: of a prompt only its last token's.
        tokens, touched, tiles: see `Routing`; of these steps.
    """

    world: World
    chip: Chip
    model: Model
    steps: Array
    work: Work
    routing: Routing
    rows: Array
    all_rows: Array
    sampled: Array

    def at(self, values: Array) -> Array:
        """Pick these steps' values."""
        picked: Array = values[self.steps]
        return picked

    def rows_of(self, op: Operation) -> Array:
        """Pick the rows that an operation works on."""
        if op.scale == "all_rows":
            return self.all_rows
        return self.sampled if op.layer == self.world.layers else self.rows

    def routed(self, values: Array, op: Operation) -> Array:
        """Pick these steps' values of the operation's layer."""
        picked: Array = values[self.steps, op.layer]
        return picked


FindRoof = Callable[[Site, Operation], Roof]


def roof_of(site: Site, op: Operation) -> Roof:
    """Find what limits an operation of the ranks' own work."""
    return _ROOFS[op.key](site, op)


def _pass_over(width: Callable[[Model], float], floors: float = 1.0) -> FindRoof:
    """Read and write so many bytes a row."""
    return lambda site, op: move_bytes(site.chip, site.rows_of(op) * width(site.model), floors)


def _project(columns: Callable[[Model, int], int], depth: Callable[[Model, int], int]) -> FindRoof:
    """Multiply the rows by weights, of which GPUs that share attention hold a part each."""

    def find(site: Site, op: Operation) -> Roof:
        shape = (columns(site.model, site.world.attention_tp), depth(site.model, site.world.attention_tp))
        return multiply_matrices(site.chip, site.rows_of(op), *shape, site.model.weight_bytes)

    return find


def _query_columns(model: Model, parts: int) -> int:
    if model.query_rank:
        return model.query_rank + model.cache_width
    return (model.heads * model.query_width + model.cache_width) // parts


def _attend(site: Site, _: Operation) -> Roof:
    """Read the cache of the decoding requests; a rank without any still launches the kernel inside a graph."""
    model, parts = site.model, site.world.attention_tp
    cache_bytes = 2 * model.cache_width / min(parts, model.cache_heads)
    page_flops = 2 * CACHE_PAGE * model.heads / parts * model.pair_width * site.world.verify_tokens
    return attend_cache(site.chip, site.at(site.work.pages), cache_bytes, page_flops)


def _attend_prompt(site: Site, _: Operation) -> Roof:
    """Compute a prompt's attention; decoders beside it run in the same kernel."""
    model, parts, batches = site.model, site.world.attention_tp, site.work.batches
    pairs = site.at(site.work.prompt_pairs) + site.at(batches.decode_tokens)
    flops = 2.0 * pairs * model.heads / parts * (model.query_width + model.value_width)
    read = (site.at(batches.decode_tokens) + site.at(batches.prompt_context)) * 2.0 * model.cache_width
    return attend_prompt(site.chip, flops, read / min(parts, model.cache_heads))


def _multiply_experts(columns: Callable[[Model], int], depth: Callable[[Model], int]) -> FindRoof:
    def find(site: Site, op: Operation) -> Roof:
        routing, model = site.routing, site.model
        tokens, touched, tiles = (site.routed(it, op) for it in (routing.tokens, routing.touched, routing.tiles))
        return multiply_groups(site.chip, tokens, touched, tiles, columns(model), depth(model), model.weight_bytes)

    return find


def _activate(site: Site, op: Operation) -> Roof:
    return move_bytes(site.chip, site.routed(site.routing.tokens, op) * 6.0 * site.model.expert_width)


_ROOFS: dict[str, FindRoof] = {
    "embedding": _pass_over(lambda model: 4 * model.hidden),
    "input_norm": _pass_over(lambda model: 8 * model.hidden),
    "qkv_gemm": _project(_query_columns, lambda model, _: model.hidden),
    "q_up_gemm": _project(
        lambda model, parts: model.heads * model.query_width // parts, lambda model, _: model.query_rank
    ),
    "kv_write": _pass_over(lambda model: 4 * model.cache_width),
    "attention": _attend,
    "attention_prefill": _attend_prompt,
    "attention_merge": _pass_over(lambda model: 8 * model.heads * model.value_width),
    "o_proj_gemm": _project(
        lambda model, _: model.hidden, lambda model, parts: model.heads * model.value_width // parts
    ),
    "post_norm": _pass_over(lambda model: 4 * model.hidden),
    "router": _pass_over(lambda model: 2 * model.hidden + 4 * model.experts, 1.5),
    "shared_gemm": _project(lambda model, _: 3 * model.shared * model.expert_width, lambda model, _: model.hidden),
    "align": _pass_over(lambda model: 16 * model.top_k, 2.0),
    "dispatch_layout": _pass_over(lambda model: 16 * model.top_k, 1.2),
    "dispatch_send": _pass_over(lambda model: 2 * model.hidden * model.top_k, 1.5),
    "combine_send": _pass_over(lambda model: 2 * model.hidden * model.top_k, 1.5),
    "expert_up": _multiply_experts(lambda model: 2 * model.expert_width, lambda model: model.hidden),
    "activation": _activate,
    "expert_down": _multiply_experts(lambda model: model.hidden, lambda model: model.expert_width),
    "expert_sum": _pass_over(lambda model: 2 * model.hidden * (1 + model.top_k)),
    "final_norm": _pass_over(lambda model: 8 * model.hidden),
    "lm_head_gemm": _project(lambda model, parts: model.vocabulary // parts, lambda model, _: model.hidden),
    "sample_softmax": _pass_over(lambda model: 8 * model.vocabulary, 2.0),
    "sample_pick": _pass_over(lambda model: 12 * model.vocabulary, 3.0),
}
