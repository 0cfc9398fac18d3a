"""Logs of requests: columns of our own and of published traces, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.readers.request_log import is_request_log, read_request_log

ROW = {"arrival_s": 1790000000.000001, "input_tokens": 10, "output_tokens": 3, "rank": 1, "ttft_s": 0.25, "e2e_s": 1.5}


def write(folder: Path, *rows: Any) -> Path:
    path = folder / "requests.jsonl"
    path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
    return path


def test_seconds_since_the_epoch_keep_their_microseconds(tmp_path: Path) -> None:
    (request,) = read_request_log(write(tmp_path, ROW)).requests
    assert request.arrival_ns == 1_790_000_000_000_001_000
    assert (request.first_ns, request.end_ns) == (250_000_000, 1_500_000_000)


def test_a_line_without_an_arrival_tells_of_the_deployment(tmp_path: Path) -> None:
    log = read_request_log(write(tmp_path, {"engine": "vllm", "ranks": 4, "version": "0.33.0"}, ROW))
    assert (log.facts.engine, log.facts.ranks, log.facts.version) == ("vllm", 4, "0.33.0")
    assert log.facts.workers is None


def test_a_published_trace_is_read_by_its_own_columns(tmp_path: Path) -> None:
    row = {"timestamp": 1500, "input_length": 600, "output_length": 7, "hash_ids": [4, 5]}
    path = write(tmp_path, row)
    assert is_request_log(path)
    (request,) = read_request_log(path).requests
    assert (request.arrival_ns, request.prompt_tokens, request.output_tokens) == (1_500_000_000, 600, 7)
    assert request.prefix == (4, 5)


def test_requests_are_brought_in_order_of_arrival(tmp_path: Path) -> None:
    later = {**ROW, "arrival_s": 1790000001}
    log = read_request_log(write(tmp_path, later, ROW))
    assert [request.arrival_ns for request in log.requests] == [1_790_000_000_000_001_000, 1_790_000_001_000_000_000]


def test_what_is_not_told_is_absent(tmp_path: Path) -> None:
    (request,) = read_request_log(write(tmp_path, {"arrival_ns": 5, "input_tokens": 1, "output_tokens": 1})).requests
    assert request.rank is None
    assert request.cached_tokens is None
    assert request.end_ns is None
    assert request.pinned is None


def test_requests_without_output_are_left_out_and_counted(tmp_path: Path) -> None:
    log = read_request_log(write(tmp_path, ROW, {**ROW, "output_tokens": 0}))
    assert (len(log.requests), log.skipped) == (1, {"no output tokens": 1})


@pytest.mark.parametrize(
    "row, what",
    [
        ({"input_tokens": -1}, "input_tokens is no count"),
        ({"input_tokens": True}, "input_tokens is no count"),
        ({"arrival_s": "soon"}, "arrival_s is no time"),
        ({"e2e_s": -2}, "e2e_s is below 0"),
        ({"pinned": 1}, "pinned is neither"),
        ({"prefix": "abc"}, "prefix is no list"),
        ({"room": -3}, "room is no number"),
    ],
)
def test_a_column_that_holds_what_it_cannot_is_refused_with_its_line(
    tmp_path: Path, row: dict[str, Any], what: str
) -> None:
    path = write(tmp_path, ROW, {**ROW, **row})
    with pytest.raises(DamagedInput, match=what) as told:
        read_request_log(path)
    assert f"{path}:2" in str(told.value)


def test_a_line_that_is_no_json_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match="no JSON"):
        read_request_log(write(tmp_path, ROW, "{oops"))


def test_an_unknown_engine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedInput, match="expected sglang or vllm"):
        read_request_log(write(tmp_path, {"engine": "other"}, ROW))


def test_a_file_without_requests_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no request"):
        read_request_log(write(tmp_path, {"engine": "vllm"}))


@pytest.mark.parametrize("text", ["", "sglang:num_running_reqs 3\n", '{"loads": []}\n', "[1, 2]\n"])
def test_other_files_are_no_request_logs(tmp_path: Path, text: str) -> None:
    path = tmp_path / "other"
    path.write_text(text)
    assert not is_request_log(path)
