"""Sides of a comparison: diagnoses of hand-made steps with their tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dprankdiag.analysis.observations import KernelUse, Observations
from dprankdiag.model.claims import Claim
from dprankdiag.pipelines.compare import Input
from dprankdiag.pipelines.compared_tables import GroupPart, tabulate_compared
from dprankdiag.pipelines.result_tables import tabulate
from dprankdiag.pipelines.sides import GroupSide, read_groups
from dprankdiag.pipelines.verdict import conclude
from tests.pipelines.builders import account, part


def give(seen: Observations, *claims: Claim, **changes: Any) -> Input:
    """Diagnose steps with the claims made about them, and tabulate what a comparison needs."""
    diagnosis = conclude(part(seen, claims, **changes))
    parts = [GroupPart(seen, account(seen, *claims))]
    return Input(diagnosis, tabulate([seen]) | tabulate_compared(parts, diagnosis.findings))


def group(seen: Observations) -> GroupSide:
    """Read back the only group of some steps."""
    (found,) = read_groups(give(seen).tables)
    return found


def use(
    name: str, times_ns: Sequence[int], *, shape: int = 16, calls: int = 40, family: str = "gemm", equal: bool = True
) -> KernelUse:
    """Make a kernel of one size that every rank ran equally often.

    Args:
        times_ns: by rank, time of one call.
    """
    times = np.array(times_ns, np.int64)
    return KernelUse(name, (shape, 1, 1, 128, 1, 1), family, equal, np.full(len(times), calls), times * calls)
