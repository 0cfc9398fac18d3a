"""Flight Recorder dumps as PyTorch writes them to JSON, made from what each rank entered.

Source: pytorch/pytorch torch/csrc/distributed/c10d/FlightRecorder.hpp, pytorch/tutorials flight_recorder_tutorial.rst
(keys; numbers of pg_status and members in pg_config are text).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

START_NS = 1_724_779_239_000_000_000
CALL_NS = 2_000_000
ALL = "0"


def entry(
    number: int, group: str, sequence: int, state: str = "completed", name: str = "nccl:all_gather", **changes: Any
) -> dict[str, Any]:
    """Make one entry; `number` is its place in the ring."""
    created = START_NS + sequence * CALL_NS
    made = {
        "frames": [{"name": "forward", "filename": "model.py", "line": 77}],
        "record_id": number,
        "pg_id": int(group),
        "process_group": [group, "default_pg" if group == ALL else f"group {group}"],
        "collective_seq_id": sequence,
        "p2p_seq_id": 0,
        "op_id": sequence,
        "profiling_name": name,
        "time_created_ns": created,
        "duration_ms": 0.4,
        "input_sizes": [[4, 7168]],
        "input_dtypes": ["BFloat16"],
        "output_sizes": [[32, 7168]],
        "output_dtypes": ["BFloat16"],
        "state": state,
        "time_discovered_started_ns": created + 1000 if state != "scheduled" else None,
        "time_discovered_completed_ns": created + CALL_NS // 2 if state == "completed" else None,
        "retired": state == "completed",
        "timeout_ms": 600_000,
        "is_p2p": False,
    }
    return made | changes


def dump(entries: Sequence[Mapping[str, Any]], members: Mapping[str, Sequence[int]], **changes: Any) -> dict[str, Any]:
    """Make a dump of entries and process groups."""
    status = {
        group: {
            "last_enqueued_collective": str(max(item["collective_seq_id"] for item in mine)),
            "last_started_collective": "-1",
            "last_completed_collective": str(
                max((item["collective_seq_id"] for item in mine if item["state"] == "completed"), default=0)
            ),
        }
        for group in members
        if (mine := [item for item in entries if item["process_group"][0] == group])
    }
    made = {
        "entries": list(entries),
        "nccl_version": "2.26.2",
        "pg_config": {
            group: {"name": group, "desc": "default_pg", "ranks": str(list(ranks))} for group, ranks in members.items()
        },
        "pg_status": status,
        "version": "2.5",
    }
    return made | changes


def run_to(sequence: int, state: str, first: int = 1, **changes: Any) -> list[dict[str, Any]]:
    """Enter the collectives of the default group up to one; all before it completed."""
    done = [entry(number - first, ALL, number) for number in range(first, sequence)]
    return [*done, entry(sequence - first, ALL, sequence, state, **changes)]


def standing_at(sequences: Sequence[tuple[int, str]], first: int = 1) -> dict[int, dict[str, Any]]:
    """Make one dump a rank: how far each got in the default group, and the state of its last collective."""
    members = {ALL: range(len(sequences))}
    return {rank: dump(run_to(*standing, first=first), members) for rank, standing in enumerate(sequences)}


def write_dumps(dumps: Mapping[int, Mapping[str, Any]], folder: Path) -> list[Path]:
    """Write one file a rank, named as PyTorch names them."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for rank, content in dumps.items():
        path = folder / f"nccl_trace_rank_{rank}.json"
        path.write_text(json.dumps(content))
        paths.append(path)
    return paths


def build_dumps(fields: Mapping[str, Any]) -> dict[int, dict[str, Any]]:
    """Make dumps from the words of a case.

    `groups` maps each group to `ranks`, `at` (the collective all are at), `state` of that, and `but`: by rank, how far
    it got instead, `[sequence, state]`; 0 is never. `first` is the oldest collective still in the ring, `missing` lists
    ranks without a dump. Entries of a rank follow the order of the groups.
    """
    ranks = sorted({rank for group in fields["groups"].values() for rank in group["ranks"]})
    members = {str(name): group["ranks"] for name, group in fields["groups"].items()}
    made = {}
    for rank in ranks:
        entries: list[dict[str, Any]] = []
        for name, group in fields["groups"].items():
            if rank not in group["ranks"]:
                continue
            sequence, state = group.get("but", {}).get(rank, (group["at"], group.get("state", "started")))
            changes = group.get("changes", {}).get(rank, {})
            first = fields.get("first", 1)
            for number in range(first, sequence + 1):
                last = number == sequence
                more = changes if last else {}
                entries.append(entry(len(entries), str(name), number, state if last else "completed", **more))
        made[rank] = dump(entries, members)
    return {rank: content for rank, content in made.items() if rank not in fields.get("missing", ())}
