"""Tell by its first bytes that a file holds what an engine told of its load."""

from __future__ import annotations

import re

LEDGER = "ledger"

_MOST_LINES = 2000
_PAGE = re.compile(rb"\A(?:\xef\xbb\xbf)?\s*(?:# (?:HELP|TYPE|EOF)\b|(?:sglang|vllm|python|process|http)[:_]\w*[{ ])")
_SHARED_MEMORY = b"SLNS"
_FRAMES = b'"payload_hex"'
_LOG = re.compile(
    rb"(?:Decode|Prefill) batch\b.*#|Engine \d+: (?:Avg prompt throughput|Iteration\()|"
    rb"\bEngines Aggregated: Avg prompt|"
    rb"\[Expert Balancedness\]|EPLB step: \d"
)
_JSON_MARKS = (
    (b'"loads"', b'"dp_rank'),
    (b'"loads"', b'"timestamp"'),
    (b'"num_reqs"', b'"num_tokens"'),
    (b'"model_path"', b'"tokenizer_path"'),
    (b'"vllm_config"', b""),
)


def is_ledger(head: bytes) -> bool:
    """Tell a page of metrics, a load or configuration answer, frames of a publisher, a snapshot, or an engine's log.

    Args:
        head: the first bytes; of a log enough of them to hold a line about load.
    """
    if head.startswith(_SHARED_MEMORY) or _PAGE.match(head):
        return True
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:1]
    if start in (b"{", b"["):
        known = any(first in head and second in head for first, second in _JSON_MARKS)
        return _FRAMES in head or known or _LOG.search(head) is not None
    return b"\0" not in head and _LOG.search(head) is not None
