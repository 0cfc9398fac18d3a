"""How to take a trace of all ranks, as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

from dprankdiag.model.bundle import SCHEMA_VERSION, describe_tool
from dprankdiag.model.capture import CapturePlan, CaptureStep, CaptureWay
from dprankdiag.views import words
from dprankdiag.views.json import write_json
from dprankdiag.views.printable import make_printable


def render_json(plans: Sequence[CapturePlan]) -> str:
    """Write all plans as one object."""
    return write_json(
        {"schema_version": SCHEMA_VERSION, "tool": describe_tool(), "plans": [asdict(plan) for plan in plans]}
    )


def render_text(plans: Sequence[CapturePlan]) -> str:
    """Write all plans; words are comments and no command is broken, so that the page can be pasted into a shell."""
    lines: list[str] = []
    for plan in plans:
        lines += ["", *_describe(plan)] if lines else _describe(plan)
        for number, way in enumerate(plan.ways, 1):
            lines += _write_way(number, way)
    return "\n".join(make_printable(line) for line in lines) + "\n"


def _describe(plan: CapturePlan) -> list[str]:
    name = {"sglang": "SGLang", "vllm": "vLLM"}[plan.engine]
    told = "as you say; it was not asked" if plan.assumed else plan.version or "release not told"
    size = "GPUs not told" if plan.gpus is None else words.count_of(plan.gpus, "GPU")
    return [
        f"# {', '.join(plan.targets)}: {name} {told}, {size}, {words.count_of(plan.nodes, 'node')}",
        "# Nothing was started: run the lines of one way yourself.",
    ]


def _write_way(number: int, way: CaptureWay) -> list[str]:
    lines = ["", f"# {number}. {way.title}", f"#    shows: {way.shows}"]
    for letter, step in zip("abcdefgh", way.steps, strict=False):
        lines += _write_step(f"{number}{letter}", step)
    return lines


def _write_step(label: str, step: CaptureStep) -> list[str]:
    return [f"# {label}. {step.title}", *step.commands, *(f"#     {note}" for note in step.notes)]
