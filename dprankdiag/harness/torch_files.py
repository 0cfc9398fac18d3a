"""Write a deployment's torch profiler traces, one file a rank, whole or as they go wrong in the field."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from dprankdiag.harness.events import UTC_START_NS, FileClock, Recording
from dprankdiag.harness.torch_names import FileNames, name_trace
from dprankdiag.harness.torch_writer import TorchStyle, render_trace

TroubleKind = Literal[
    "same_rank", "no_distributed_info", "interleaved", "truncated_json", "truncated_gzip", "missing", "empty"
]

_REQUEST_NS = UTC_START_NS - 2_345_678_900
_EXPORT_NS = 1_800_000_000
_BLOCK = 65_536
_KEPT = 0.7


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something wrong with the files.

    Attributes:
        kind: same_rank: replicas of a dense model each call themselves rank 0, in the file and in its name, and
            their process titles are alike;
            no_distributed_info: the file does not tell rank and communicators;
            interleaved: these ranks wrote to one path, block over block, so that it is no JSON;
            truncated_json: the process died while writing; truncated_gzip: the copy broke off;
            missing: no file; empty: a file without a byte.
        ranks: whose files; empty for all.
    """

    kind: TroubleKind
    ranks: tuple[int, ...] = ()

    def hits(self, rank: int) -> bool:
        """Tell whether a rank's file suffers."""
        return not self.ranks or rank in self.ranks


def write_traces(
    recording: Recording,
    clocks: Sequence[FileClock],
    folder: Path,
    *,
    name: str,
    naming: FileNames,
    style: TorchStyle | None = None,
    troubles: Sequence[Trouble] = (),
) -> list[Path]:
    """Write a file a rank into a folder that is there.

    Args:
        recording: what happened.
        clocks: of every rank's host.
        folder: where to.
        name: prefix of the file names.
        naming: whose way of naming files.
        style: what was asked of which profiler.
        troubles: what goes wrong with the files.

    Returns:
        The files, by rank; interleaved ranks share one.

    Raises:
        ValueError: only vLLM names files by a rank inside the replica.
    """
    if naming != "vllm" and any(trouble.kind == "same_rank" for trouble in troubles):
        raise ValueError("only vLLM's replicas number their files anew")
    texts: dict[Path, list[str]] = {}
    cuts: dict[Path, set[TroubleKind]] = {}
    shared = next((min(it.ranks) for it in troubles if it.kind == "interleaved" and it.ranks), 0)
    for rank, clock in enumerate(clocks):
        kinds = {trouble.kind for trouble in troubles if trouble.hits(rank)}
        if "missing" in kinds:
            continue
        text = render_trace(recording, rank, clock=clock, style=_spoil_style(style or TorchStyle(), kinds))
        named = shared if "interleaved" in kinds else rank
        path = folder / _name_file(recording, named, clocks[named], name, naming, "same_rank" in kinds)
        texts.setdefault(path, []).append(text)
        cuts.setdefault(path, set()).update(kinds)
    for path, parts in texts.items():
        path.write_bytes(_encode(_interleave(parts), path, cuts[path]))
    return list(texts)


def _spoil_style(style: TorchStyle, kinds: set[TroubleKind]) -> TorchStyle:
    if "no_distributed_info" in kinds:
        style = replace(style, distributed_info=False)
    return replace(style, replica=True) if "same_rank" in kinds else style


def _name_file(
    recording: Recording, rank: int, clock: FileClock, prefix: str, naming: FileNames, same_rank: bool
) -> str:
    stamp = _REQUEST_NS
    if naming != "sglang":
        stamp = UTC_START_NS + clock.wall_error_ns + _EXPORT_NS + 37_113_009 * rank
    name = name_trace(recording, rank, naming=naming, prefix=prefix, stamp_ns=stamp)
    return name[name.index("rank") :] if same_rank else name


def _interleave(texts: Sequence[str]) -> str:
    """Let several writers overwrite each other: of every block the text of one stays."""
    if len(texts) == 1:
        return texts[0]
    size = max(map(len, texts))
    blocks = []
    for turn, begin in enumerate(range(0, size, _BLOCK)):
        written = [text[begin : begin + _BLOCK] for text in texts if len(text) > begin]
        blocks.append(written[turn % len(written)])
    return "".join(blocks)


def _encode(text: str, path: Path, kinds: set[TroubleKind]) -> bytes:
    if "empty" in kinds:
        return b""
    if "truncated_json" in kinds:
        text = text[: int(len(text) * _KEPT)]
    content = gzip.compress(text.encode(), compresslevel=1, mtime=0) if path.suffix == ".gz" else text.encode()
    return content[: int(len(content) * _KEPT)] if "truncated_gzip" in kinds else content
