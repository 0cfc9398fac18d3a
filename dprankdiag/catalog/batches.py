"""Read an engine's batch annotations: how many requests and tokens a rank's step held."""

from __future__ import annotations

import re
from dataclasses import dataclass

_VLLM = re.compile(r"^execute_context_(\d+)\((\d+)\)_generation_(\d+)\((\d+)\)$")
_SGLANG = re.compile(r"^step\[(\w+) bs=(\d+)([^\]]*)\]")
_FIELD = re.compile(r"\b(\w+)=(\d+)")


@dataclass(frozen=True, slots=True)
class Batch:
    """What an annotation says of one step.

    Attributes:
        requests: requests in the batch.
        prefill_tokens: tokens of prompt chunks; None if the annotation does not say.
        held_tokens: sum of KV lengths; None if the annotation does not say.
    """

    requests: int
    prefill_tokens: int | None
    held_tokens: int | None


def parse_batch(text: str) -> Batch | None:
    """Parse a range name; None if it announces no batch.

    Source: vLLM 0.33.0 worker ranges `execute_context_R(T)_generation_R(T)`; SGLang 0.5.10 spans `step[MODE bs=N]`,
    with `toks=` for extend and, from 0.5.19 with detailed annotations, `g_sk=` and `c_sk=`, sums of KV lengths.
    """
    match = _VLLM.match(text)
    if match:
        context, tokens, generation, _ = (int(group) for group in match.groups())
        return Batch(context + generation, tokens, None)
    match = _SGLANG.match(text)
    if not match:
        return None
    mode, requests, rest = match.groups()
    fields = {name: int(value) for name, value in _FIELD.findall(rest)}
    held = [fields[name] for name in ("g_sk", "c_sk") if name in fields]
    prefill = fields.get("toks") if mode in ("EXTEND", "MIXED") else 0
    return Batch(int(requests), prefill, sum(held) if held else None)
