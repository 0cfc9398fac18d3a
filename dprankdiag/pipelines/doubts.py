"""Doubt an answer that lost most of what the one before it told: half a page is no news of ranks that went away."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from dprankdiag.model.ledgers import LedgerAnswer

KEPT_SHARE = 0.5
"""Share of the numbers before that a page must still tell. A broken page of a public report told 3 %."""
MOST_DOUBTS = 2
"""Answers in a row that are doubted; the next one is believed: ranks do leave, and engines start anew."""


class Doubts:
    """Compares the answers of one interface of one target with the last one believed."""

    def __init__(self) -> None:
        self._ranks: frozenset[int] = frozenset()
        self._numbers = 0
        self._in_a_row = 0

    def judge(self, answers: Sequence[LedgerAnswer]) -> str:
        """Tell in one line what is doubtful; "" where the answers are believed."""
        ranks = frozenset(rank for answer in answers for rank in answer.ranks)
        numbers = sum(int(np.isfinite(told).sum()) for answer in answers for told in answer.values.values())
        lost = sorted(self._ranks - ranks)
        is_doubtful = bool(lost) or numbers < KEPT_SHARE * self._numbers
        if is_doubtful and self._in_a_row < MOST_DOUBTS:
            self._in_a_row += 1
            told = f"ranks {', '.join(map(str, lost))} are missing" if lost else "most series are missing"
            return f"{told} ({numbers} numbers after {self._numbers}); believed if it stays so"
        self._ranks, self._numbers, self._in_a_row = ranks, numbers, 0
        return ""
