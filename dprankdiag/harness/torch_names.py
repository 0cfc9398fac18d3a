"""How torch profiler traces spell what nsys spells otherwise, and how engines name the files.

Source: demangled names in public traces (Itanium ABI spelling: `16`, `8u`, `float const*`, `(anonymous namespace)`);
SGLang 0.5.23 scheduler profiler, vLLM 0.33.0 torch profiler wrapper, torch `tensorboard_trace_handler`.
"""

from __future__ import annotations

import re
from typing import Literal

from dprankdiag.harness.events import Recording

FileNames = Literal["sglang", "vllm", "torch"]

_NUMBER = re.compile(r"\((unsigned int|unsigned long|int|long|bool)\)(\d+)")
_SUFFIX = {"int": "", "unsigned int": "u", "long": "l", "unsigned long": "ul"}
_CONSTANT = re.compile(r"\bconst ([\w:]+) \*")
_PLACEHOLDER = re.compile(r"\bT(\d+)\b")
_CLOSED_TWICE = re.compile(r">(?=>)")
_VERSION = re.compile(r"_v\d+$")
_CLOSING = {")": "(", ">": "<"}


def spell_call(text: str) -> str:
    """Drop the version from a runtime call's name."""
    return _VERSION.sub("", text)


def spell_kernel(text: str) -> str:
    """Spell a kernel's signature as the C++ ABI does: no casts, types before `const`, template arguments put in."""
    text = _NUMBER.sub(_spell_number, text.replace("<unnamed>", "(anonymous namespace)"))
    text = _CONSTANT.sub(r"\1 const*", text).replace(" *", "*")
    if not text.endswith(")"):
        return text
    start = _find_opening(text, len(text) - 1)
    head, parameters = text[:start], text[start:]
    arguments = _split_arguments(head[_find_opening(head, start - 1) + 1 : -1]) if head.endswith(">") else []

    def fill(match: re.Match[str]) -> str:
        position = int(match[1]) - 1
        return arguments[position] if position < len(arguments) else "int"

    return _CLOSED_TWICE.sub("> ", head + _PLACEHOLDER.sub(fill, parameters))


def _spell_number(match: re.Match[str]) -> str:
    if match[1] == "bool":
        return "true" if match[2] == "1" else "false"
    return match[2] + _SUFFIX[match[1]]


def _find_opening(text: str, closing: int) -> int:
    """Find the bracket that the one at a position closes."""
    opening, depth = _CLOSING[text[closing]], 0
    for position in range(closing, -1, -1):
        depth += (text[position] == text[closing]) - (text[position] == opening)
        if not depth:
            return position
    raise ValueError(f"unbalanced {text[closing]!r} in {text!r}")


def _split_arguments(text: str) -> list[str]:
    parts, depth = [""], 0
    for letter in text:
        depth += (letter in "<(") - (letter in ">)")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def name_trace(
    recording: Recording, rank: int, *, naming: FileNames, prefix: str, stamp_ns: int, stage: str = ""
) -> str:
    """Name the trace of a rank.

    Args:
        recording: tells where the rank stands.
        rank: whose trace.
        naming: whose way of naming.
        prefix: what the user asked file names to begin with; "" for nothing.
        stamp_ns: wall time; of the request (SGLang, one for all ranks) or of the export.
        stage: "EXTEND" or "DECODE" where SGLang profiles by stage.
    """
    place, process = recording.places[rank], recording.processes[rank]
    if naming == "vllm":
        place_text = f"dp{place.dp}_pp0_tp{place.attention}_dcp0_ep{place.expert}_rank{place.attention}"
        return f"{prefix and prefix + '_'}{place_text}.{stamp_ns}.pt.trace.json.gz"
    if naming == "torch":
        return f"{prefix and prefix + '_'}{process.host}_{process.pid}.{stamp_ns}.pt.trace.json"
    profile = f"{stamp_ns // 1_000_000_000}.{stamp_ns % 1_000_000_000 // 100:07d}"
    dp = f"-DP-{place.dp}" if recording.places[-1].dp else ""
    ep = f"-EP-{place.expert}" if recording.places[-1].expert else ""
    return f"{prefix and prefix + '-'}{profile}-TP-{rank}{dp}{ep}{stage and '-' + stage}.trace.json.gz"
