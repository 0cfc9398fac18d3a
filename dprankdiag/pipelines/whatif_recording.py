"""Read the traces or the bundle of a what-if about recorded steps."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from dprankdiag.errors import InputError, UsageError
from dprankdiag.model.serving import UNKNOWN_SERVING, Serving
from dprankdiag.model.whatif import WhatIf
from dprankdiag.pipelines.diagnose import Progress, diagnose
from dprankdiag.pipelines.whatif_bundle import ask_bundle
from dprankdiag.pipelines.whatif_experts import ExpertPlan
from dprankdiag.readers.expert_counts import read_expert_counts
from dprankdiag.readers.sniff import NSYS_PARQUET, NSYS_SQLITE, TORCH_JSON, sniff
from dprankdiag.store.bundle import is_bundle, load_bundle

TRACES = (NSYS_SQLITE, NSYS_PARQUET, TORCH_JSON)


def is_steps(path: Path) -> bool:
    """Tell whether a path is a bundle, a trace, or a folder, which is taken for one of traces."""
    if is_bundle(path) or path.is_dir():
        return True
    try:
        return sniff(path) in TRACES
    except InputError:
        return False


def ask_recording(
    paths: Sequence[Path],
    experts: Sequence[Path] = (),
    plan: ExpertPlan | None = None,
    said: Serving = UNKNOWN_SERVING,
    progress: Progress | None = None,
) -> WhatIf:
    """Price what could be otherwise in a recording.

    Args:
        paths: traces of one deployment, or one bundle.
        experts: counts of tokens by expert.

    Raises:
        UsageError: a path does not exist, or there are several bundles.
        InputError: an input cannot be used.
    """
    for path in (*paths, *experts):
        if not path.exists():
            raise UsageError("no such file", where=str(path))
    counts = read_expert_counts(list(experts)) if experts else None
    names = tuple(str(path) for path in paths)
    if any(is_bundle(path) for path in paths):
        if len(paths) > 1:
            raise UsageError(f"{len(paths)} inputs, of which one is a bundle", mend="give one bundle, or the traces")
        diagnosis, tables = load_bundle(paths[0])
        return ask_bundle(diagnosis, tables, names, counts, plan, said)
    outcome = diagnose(paths, progress=progress)
    return ask_bundle(outcome.diagnosis, outcome.tables, names, counts, plan, said)
