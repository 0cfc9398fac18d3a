"""Write small pages and answers of engines, with the numbers that a test wants to see judged."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

Rows = Mapping[str, Sequence[float | None]]
"""Series → its value on each rank; None where the rank has no series."""

SGLANG_LABELS = 'engine_type="unified",model_name="m",pp_rank="0"'


def write_sglang(path: Path, rows: Rows, *, labels: str = SGLANG_LABELS, ranked: bool = True) -> Path:
    """Write a SGLang page. A series may bring labels of its own: `realtime_tokens_total{mode="decode"}`.

    Args:
        ranked: series carry the rank; else the samples of a series differ in nothing but their order.
    """
    size = next(len(values) for values in rows.values())
    rows = {**rows, "context_len": [163_840.0] * size}  # a page ends with something else than what is judged
    return _write(
        path, "sglang", rows, lambda rank: f'dp_rank="{rank}",{labels},tp_rank="{rank}"' if ranked else labels
    )


def write_vllm(path: Path, rows: Rows) -> Path:
    """Write a vLLM page."""
    return _write(path, "vllm", rows, lambda rank: f'engine="{rank}",model_name="m"')


def _write(path: Path, prefix: str, rows: Rows, label: Callable[[int], str]) -> Path:
    lines = []
    for name, values in rows.items():
        stem, _, more = name.partition("{")
        kind = "counter" if stem.endswith("_total") else "gauge"
        lines.append(f"# TYPE {prefix}:{stem} {kind}")
        extra = f",{more.rstrip('}')}" if more else ""
        lines += [
            f"{prefix}:{stem}{{{label(rank)}{extra}}} {float(value)!r}"
            for rank, value in enumerate(values)
            if value is not None
        ]
    path.write_text("\n".join(lines) + "\n", "utf-8")
    return path


def write_loads(path: Path, loads: Sequence[Mapping[str, Any]], at_s: float, **top: Any) -> Path:
    """Write a load answer of SGLang; each load gets its rank by its place, and the moment as its stamp."""
    told = [{"timestamp": at_s, "dp_rank": rank, "num_waiting_reqs": 0, **load} for rank, load in enumerate(loads)]
    stamp = {"timestamp": f"2026-07-01T00:{int(at_s) // 60 % 60:02d}:{int(at_s) % 60:02d}+00:00"}
    path.write_text(json.dumps({**stamp, "version": "0.5.23", **top, "loads": told}), "utf-8")
    return path


def relabel(text: str, new_of: Mapping[int, int]) -> str:
    """Give the ranks of a page or an answer other numbers."""
    text = re.sub(r'\b(dp_rank|tp_rank|moe_ep_rank|engine)="(\d+)"', lambda it: f'{it[1]}="{new_of[int(it[2])]}"', text)
    if not text.lstrip().startswith("{"):
        return text
    answer = json.loads(text)
    for load in answer["loads"]:
        load["dp_rank"] = new_of[load["dp_rank"]]
    answer["loads"].sort(key=lambda load: load["dp_rank"])
    return json.dumps(answer)


def multiply(text: str, factor: float, *families: str) -> str:
    """Multiply the values of some families of a page."""
    names = "|".join(re.escape(name) for name in families)
    return re.sub(
        rf"^((?:{names})(?:\{{.*\}})?) (\S+)$",
        lambda it: f"{it[1]} {float(it[2]) * factor!r}",
        text,
        flags=re.MULTILINE,
    )
