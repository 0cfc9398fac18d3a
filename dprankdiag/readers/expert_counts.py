"""Read how many tokens went to which expert: dumps of SGLang's expert recorder, or tables in JSON and CSV.

Source: sglang 0.5.23 `eplb/expert_distribution.py`: `stat` writes `logical_count`, a ring of passes of which unused
ones are zero; `per_pass` and `per_token` write `records` of each rank with `global_physical_count`, and the map of
slots to experts.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.model.expert_counts import ExpertCounts, IntArray
from dprankdiag.readers.safe_pickle import StoredTensor
from dprankdiag.readers.torch_archive import TorchArchive, is_torch_archive, open_torch_archive

_MEND = "give a dump of SGLang's expert recorder (.pt), JSON (passes, layers, experts), or CSV (layer,expert,tokens)"
_COLUMNS = ("layer", "expert", "tokens")
MOST_SIZE = 1 << 27
MOST = 1 << 52
"""No count is meant to be larger, and a float holds any up to it."""


def read_expert_counts(paths: Sequence[Path]) -> ExpertCounts:
    """Read counts of one deployment; of several files (one a rank) the counts of each pass add up.

    Raises:
        InputError: a file holds no counts, or names what is not to be run.
        DamagedInput: a file is broken, or files do not fit together.
    """
    parts = [_read_file(path) for path in paths]
    if len(parts) == 1:
        return parts[0]
    shapes = {part.tokens.shape[1:] for part in parts}
    if len(shapes) > 1:
        raise DamagedInput(
            f"counts of {' and '.join(str(shape) for shape in sorted(shapes))} layers and experts do not add up",
            where=str(paths[1]),
            mend="give the files of one deployment",
        )
    length = min(len(part.tokens) for part in parts)
    tokens = np.sum([part.tokens[:length] for part in parts], axis=0)
    notes = tuple(dict.fromkeys(note for part in parts for note in part.notes))
    if any(len(part.tokens) != length for part in parts):
        notes = (*notes, f"the files hold different numbers of passes; the first {length} of each are added up")
    return ExpertCounts(
        tuple(str(path) for path in paths), tokens, any(part.is_summed for part in parts), parts[0].slots, notes
    )


def _read_file(path: Path) -> ExpertCounts:
    if is_torch_archive(path):
        return _read_dump(open_torch_archive(path))
    try:
        text = path.read_text("utf-8")
    except UnicodeDecodeError as error:
        what = "neither an archive of torch.save nor text"
        raise InputError(what, where=str(path), mend=_MEND) from error
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror or error})", where=str(path)) from error
    start = text.lstrip()[:1]
    tokens, is_summed = _read_json(text, path) if start in ("{", "[") else (_read_csv(text, path)[None], True)
    return ExpertCounts((str(path),), _check(tokens, path), is_summed)


def _read_dump(archive: TorchArchive) -> ExpertCounts:
    value = archive.value
    if isinstance(value, dict) and isinstance(value.get("logical_count"), StoredTensor):
        tokens = archive.load(value["logical_count"])
        if tokens.ndim == 2:
            return ExpertCounts((str(archive.path),), _check(tokens[None], archive.path), True)
        kept = tokens[tokens.reshape(len(tokens), -1).any(axis=1)] if tokens.ndim == 3 else tokens
        return ExpertCounts((str(archive.path),), _check(kept, archive.path), False)
    if isinstance(value, dict) and isinstance(value.get("records"), list):
        return _read_records(archive, value)
    raise InputError("a torch file without logical_count or records", where=str(archive.path), mend=_MEND)


def _read_records(archive: TorchArchive, value: Mapping[str, Any]) -> ExpertCounts:
    """Read the passes of a rank; slots become experts by the map."""
    where = str(archive.path)
    named = value.get("last_physical_to_logical_map")
    counted = [
        record["global_physical_count"]
        for record in value["records"]
        if isinstance(record, dict) and isinstance(record.get("global_physical_count"), StoredTensor)
    ]
    if not counted or not isinstance(named, StoredTensor):
        raise InputError("records without counts, or without the map of slots to experts", where=where, mend=_MEND)
    slots = np.asarray(archive.load(named), np.int64)
    physical = np.array([archive.load(tensor) for tensor in counted])
    if slots.ndim != 2 or physical.shape[1:] != slots.shape or slots.min(initial=0) < 0:
        raise DamagedInput(f"counts of shape {physical.shape} for a map of shape {slots.shape}", where=where)
    n_logical = int(slots.max(initial=0)) + 1
    if physical.shape[0] * slots.shape[0] * n_logical > MOST_SIZE:
        raise DamagedInput(f"{physical.shape[0]} passes of {n_logical} experts are too many", where=where)
    tokens = np.zeros((len(physical), len(slots), n_logical), np.int64)
    for (layer, slot), expert in np.ndenumerate(slots):
        tokens[:, layer, expert] += physical[:, layer, slot]
    note = "counts per slot are of the last placement; passes before a rearrangement would be told wrongly"
    return ExpertCounts((where,), _check(tokens, archive.path), False, slots, (note,))


def _read_json(text: str, path: Path) -> tuple[np.ndarray[Any, Any], bool]:
    try:
        value = json.loads(text)
        rows = value.get("logical_count") if isinstance(value, dict) else value
        tokens = np.array(rows)
    except (ValueError, RecursionError) as error:
        raise DamagedInput(f"no table of counts in JSON ({error})", where=str(path), mend=_MEND) from error
    return (tokens[None], True) if tokens.ndim == 2 else (tokens, False)


def _read_csv(text: str, path: Path) -> np.ndarray[Any, Any]:
    reader = csv.DictReader(StringIO(text))
    try:
        if not set(_COLUMNS) <= set(reader.fieldnames or ()):
            raise InputError(f"no columns {', '.join(_COLUMNS)}", where=str(path), mend=_MEND)
        cells = [tuple(int(row[name]) for name in _COLUMNS) for row in reader]
    except (TypeError, ValueError, csv.Error) as error:
        raise DamagedInput(f"a cell that is no whole number ({error})", where=str(path), mend=_MEND) from error
    if not cells or min(min(cell) for cell in cells) < 0 or max(cell[2] for cell in cells) > MOST:
        raise DamagedInput("no rows, or numbers below 0 or beyond all counts", where=str(path), mend=_MEND)
    n_layers, n_logical = 1 + max(cell[0] for cell in cells), 1 + max(cell[1] for cell in cells)
    if n_layers * n_logical > MOST_SIZE:
        raise DamagedInput(f"{n_layers} layers of {n_logical} experts are too many", where=str(path))
    tokens = np.zeros((n_layers, n_logical), np.int64)
    for layer, expert, count in cells:
        tokens[layer, expert] += count
    return tokens


def _check(tokens: np.ndarray[Any, Any], path: Path) -> IntArray:
    """Return counts as whole numbers of three axes.

    Raises:
        DamagedInput: of another shape, not whole, below 0, or all 0.
    """
    if tokens.ndim != 3 or tokens.dtype.kind not in "iuf":
        what = f"numbers of shape {tokens.shape}, expected (passes, layers, experts)"
        raise DamagedInput(what, where=str(path), mend=_MEND)
    whole = np.asarray(tokens, np.float64)
    if not np.isfinite(whole).all() or (whole < 0).any() or (whole > MOST).any() or (whole != np.floor(whole)).any():
        raise DamagedInput("counts that are no whole numbers of 0 or more", where=str(path), mend=_MEND)
    if not whole.any():
        mend = "record while requests are served: POST /start_expert_distribution_record, then /dump_…"
        raise DamagedInput("no token was counted", where=str(path), mend=mend)
    return np.asarray(tokens, np.int64)
