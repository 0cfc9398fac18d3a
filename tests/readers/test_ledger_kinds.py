"""What engines tell is known by its first bytes, and nothing else is taken for it."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from dprankdiag.errors import InputError, UsageError
from dprankdiag.readers.ledger_kinds import is_ledger
from dprankdiag.readers.sniff import sniff
from tests.flights import standing_at, write_dumps
from tests.matrices import TWO_NODES, write_matrix

OURS = {
    "page": b"# HELP sglang:num_running_reqs x\n# TYPE sglang:num_running_reqs gauge\n",
    "page after a blank line": b"\n# TYPE vllm:num_requests_running gauge\n",
    "page with a mark of order": b"\xef\xbb\xbf# HELP a b\n",
    "page without comments": b'sglang:num_running_reqs{dp_rank="0"} 1.0\n',
    "page of load answers": b'sglang_num_running_reqs{dp_rank="0"} 1.0\n',
    "load answer": b'{"timestamp": "x", "loads": [{"dp_rank": 0}]}',
    "old load answer": b'[{"dp_rank": 0, "num_reqs": 1, "num_waiting_reqs": 0, "num_tokens": 5}]',
    "configuration of SGLang": b'{"model_path": "m", "tokenizer_path": "t"}',
    "configuration of vLLM": b'{"vllm_config": {}}',
    "frames": b'{"payload_hex": "93", "sequence": 1}\n',
    "snapshot": b"SLNS\x02\x00\x08\x00\x00\x40\x00\x00",
    "log of SGLang": b"start\n[2026-03-01 10:00:00 DP0 TP0] Decode batch, #running-req: 1, #token: 2\n",
    "log of vLLM": b"(APIServer pid=1) INFO 09-21 14:13:30 [a.py:1] Engine 000: Avg prompt throughput: 1.0 tokens/s\n",
    "iterations of vLLM": b"INFO 09-21 14:13:30 [a.py:1] Engine 000: Iteration(5): 1 context requests\n",
    "balancedness": b"[2026-03-01 10:00:00 TP0] [Expert Balancedness] forward_pass_id=7\n",
}
OTHERS = {
    "nothing": b"",
    "words": b"a letter to a friend\n",
    "numbers": b"1,2,3\n4,5,6\n",
    "matrix": b"waiting_rank,on_0,on_1\n0,1,2\n1,2,3\n",
    "trace": b'{"schemaVersion": 1, "traceEvents": [{"ph": "X", "name": "k", "dur": 5}]}',
    "any object": b'{"a": 1, "timestamp": 5}',
    "any list": b'[{"dp_rank": 0}]',
    "loads of a lorry": b'{"loads": ["sand", "gravel"]}',
    "database": b"SQLite format 3\0" + bytes(100),
    "archive": b"PK\x03\x04" + bytes(50),
    "code": b"# a comment\nimport os\nprint('Decode batch')\n",
    "markdown": b"# Title\n\nsome words about python_code {x}\n",
    "log of something else": b"[2026-03-01 10:00:00] Decode of a batch began\nEngine started\n",
    "YAML": b"groups:\n  - name: x\n    rules:\n      - expr: sglang:num_running_reqs > 5\n",
}


@pytest.mark.parametrize("name", OURS)
def test_what_an_engine_tells_is_known(name: str) -> None:
    assert is_ledger(OURS[name])


@pytest.mark.parametrize("name", OTHERS)
def test_other_files_are_not_taken_for_it(name: str) -> None:
    assert not is_ledger(OTHERS[name])


@pytest.mark.parametrize("seed", range(20))
def test_random_bytes_and_random_json_are_not_taken_for_it(seed: int) -> None:
    choose = random.Random(seed)
    assert not is_ledger(bytes(choose.randrange(256) for _ in range(4096)))
    document = {f"key{number}": [choose.random(), {"name": "x" * choose.randrange(9)}] for number in range(50)}
    assert not is_ledger(json.dumps(document).encode())


def test_a_log_that_tells_late_is_known_by_more_of_it(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_bytes(b"server argument\n" * 4000 + OURS["log of SGLang"])
    assert sniff(path) == "ledger"


def test_matrices_and_dumps_keep_their_kind(tmp_path: Path) -> None:
    assert sniff(write_matrix(TWO_NODES, tmp_path / "waits.csv")) == "wait-matrix"
    dumps = write_dumps(standing_at([(41, "completed"), (40, "started")]), tmp_path)
    assert {sniff(path) for path in dumps} == {"flight-recorder"}


@pytest.mark.parametrize("name", [name for name in OTHERS if name not in ("matrix", "trace", "numbers")])
def test_a_file_of_another_kind_is_refused_or_called_what_it_is(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    path.write_bytes(OTHERS[name])
    with pytest.raises((InputError, UsageError)):
        sniff(path)


def test_every_file_of_the_recorded_scenarios_is_known(fixtures: Path) -> None:
    told = [
        path
        for folder in ("sglang-0.5.23", "sglang-0.5.9", "sglang-0.5.12", "sglang-0.5.18", "vllm-0.33.0")
        for path in sorted((fixtures / folder).glob("*/*"))
        if path.suffix in (".prom", ".shm", ".jsonl") or path.name.startswith(("v1_loads", "server", "rank"))
    ]
    assert len(told) > 150
    assert [path for path in told if path.name != "v1_loads_t1_rank99.json" and sniff(path) != "ledger"] == []
