"""Write what an engine's expert recorder would have counted in a world."""

from __future__ import annotations

import json
from pathlib import Path

from dprankdiag.harness.events import Array
from dprankdiag.harness.roofline import count_rows
from dprankdiag.harness.roofline_batches import deal_work
from dprankdiag.harness.roofline_presets import choose_model
from dprankdiag.harness.roofline_routing import count_experts
from dprankdiag.harness.world import World


def count_world(world: World) -> Array:
    """Count the tokens of each expert in the steps that are recorded whole, `(steps, layers, experts)`.

    Raises:
        ValueError: the physics knows no single experts.
    """
    if world.physics != "roofline":
        raise ValueError(f"the {world.physics} physics counts no experts")
    own = count_rows(world, deal_work(world))[:, :: world.attention_tp]
    counts: Array = count_experts(world, choose_model(world), own.sum(axis=1))[world.full_steps]
    return counts


def write_counts(world: World, path: Path) -> Path:
    """Write the counts of every step as JSON: passes, layers, experts."""
    path.write_text(json.dumps({"logical_count": count_world(world).tolist()}), "utf-8")
    return path
