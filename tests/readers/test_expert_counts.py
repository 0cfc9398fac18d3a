"""Counts of experts out of engine dumps, JSON and CSV; nothing that a dump names is run."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.readers.expert_counts import read_expert_counts
from dprankdiag.readers.safe_pickle import read_pickle

DUMPS = Path(__file__).parents[1] / "payloads" / "torch" / "expert-counts"


def pack(folder: Path, pickled: bytes, members: Mapping[str, bytes] | None = None) -> Path:
    """Write an archive as torch.save does, with a pickle of our own."""
    path = folder / "dump.pt"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("dump/data.pkl", pickled)
        for member, content in (members or {}).items():
            archive.writestr(f"dump/{member}", content)
    return path


class Runs:
    """Would touch a file if it were unpickled."""

    def __init__(self, call: Any, *arguments: Any) -> None:
        self.call, self.arguments = call, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call, self.arguments


def test_the_unused_passes_of_a_ring_are_left_out() -> None:
    counts = read_expert_counts([DUMPS / "stat.pt"])
    np.testing.assert_array_equal(counts.tokens, np.arange(72).reshape(3, 3, 8))
    assert counts.tokens.dtype == np.int64
    assert (counts.slots, counts.is_summed) == (None, False)


def test_slots_become_experts_by_the_map() -> None:
    counts = read_expert_counts([DUMPS / "per_pass.pt"])
    assert counts.slots is not None
    assert counts.slots.shape == (3, 10)
    np.testing.assert_array_equal(counts.tokens[0], [[2, 1, 1, 1, 2, 1, 1, 1], [1] * 7 + [3], [3] + [1] * 7])
    np.testing.assert_array_equal(counts.tokens[3], counts.tokens[0] * 4)


def test_a_view_into_a_larger_storage_is_read_by_its_strides() -> None:
    counts = read_expert_counts([DUMPS / "strided.pt"])
    np.testing.assert_array_equal(counts.tokens, np.arange(240).reshape(2, 3, 40)[:, :, ::5])


def test_files_of_several_ranks_add_up_if_they_are_of_one_model(tmp_path: Path) -> None:
    counts = read_expert_counts([DUMPS / "per_pass.pt", DUMPS / "per_pass.pt"])
    np.testing.assert_array_equal(counts.tokens, 2 * read_expert_counts([DUMPS / "per_pass.pt"]).tokens)
    with pytest.raises(DamagedInput, match="do not add up"):
        read_expert_counts([DUMPS / "stat.pt", write(tmp_path / "other.json", "[[1, 2]]")])


def write(path: Path, text: str) -> Path:
    path.write_text(text, "utf-8")
    return path


@pytest.mark.parametrize("protocol", [0, 1, 2, 4, 5])
@pytest.mark.parametrize(
    "call,arguments", [(os.system, ("touch pwned",)), (subprocess.Popen, (["touch", "pwned"],)), (eval, ("1",))]
)
def test_a_dump_that_names_what_could_run_is_refused_in_one_line_and_nothing_runs(
    call: Any, arguments: Any, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = pack(tmp_path, pickle.dumps({"logical_count": Runs(call, *arguments)}, protocol))
    with pytest.raises(InputError) as raised:
        read_expert_counts([path])
    line = str(raised.value)
    assert "nothing in it was run" in line
    assert "\n" not in line
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "pickled,why",
    [
        (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n)R.", "calls something else"),
        (b"\x80\x02ctorch\nload\n.", "names torch.load"),
        (b"\x80\x02(X\x01\x00\x00\x00aK\x01tQ.", "points to something else"),
        (b"\x80\x02ccollections\nOrderedDict\n)Rccollections\nOrderedDict\nb.", "operation BUILD"),
        (b"\x80\x02ccollections\nOrderedDict\n)\x81.", "operation NEWOBJ"),
        (b"(S'a'\nios\nsystem\n.", "operation"),
        (b"\x80\x02K\x01K\x02.", "no whole pickle"),
        (b"\x80\x02t.", "no whole pickle"),
        (b"\x80\x02}K\x01K\x02K\x03u.", "no whole pickle"),
        (b"\x80\x02h\x05.", "no whole pickle"),
        (b"\x80\x02]", "no whole pickle"),
        (b"", "no whole pickle"),
    ],
)
def test_a_pickle_that_is_more_than_values_or_less_is_refused(pickled: bytes, why: str) -> None:
    with pytest.raises(InputError, match=why):
        read_pickle(pickled, "dump.pt")


def test_plain_values_are_read_whatever_the_protocol() -> None:
    value = {"a": [1, -2, 3.5, None, True, (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4), "é", 1 << 70], 5: {}}
    for protocol in (2, 3, 4, 5):
        assert read_pickle(pickle.dumps(value, protocol), "x") == value


def test_numbers_that_are_cut_short_are_damage(tmp_path: Path) -> None:
    with zipfile.ZipFile(DUMPS / "stat.pt") as archive:
        pickled = archive.read("stat/data.pkl")
    with pytest.raises(DamagedInput, match="cut short"):
        read_expert_counts([pack(tmp_path, pickled, {"data/0": b"\0" * 40})])
    with pytest.raises(DamagedInput, match="cannot be read"):
        read_expert_counts([pack(tmp_path, pickled)])


def test_a_file_of_torch_without_counts_says_what_was_expected(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without logical_count or records"):
        read_expert_counts([pack(tmp_path, pickle.dumps({"weight": 1}, 2))])


@pytest.mark.parametrize("text", ['{"logical_count": [[1, 2], [3, 4]]}', "[[1, 2], [3, 4]]"])
def test_sums_in_json_are_one_pass(text: str, tmp_path: Path) -> None:
    counts = read_expert_counts([write(tmp_path / "c.json", text)])
    assert counts.tokens.tolist() == [[[1, 2], [3, 4]]]
    assert counts.is_summed


def test_passes_in_json_and_rows_in_csv_are_read(tmp_path: Path) -> None:
    passes = read_expert_counts([write(tmp_path / "c.json", json.dumps([[[1, 0]], [[0, 2]]]))])
    assert (passes.tokens.shape, passes.is_summed) == ((2, 1, 2), False)
    rows = read_expert_counts([write(tmp_path / "c.csv", "layer,expert,tokens\n0,0,5\n1,2,7\n1,2,1\n")])
    assert rows.tokens.tolist() == [[[5, 0, 0], [0, 0, 8]]]


@pytest.mark.parametrize(
    "name,text,what",
    [
        ("c.csv", "layer,tokens\n0,1\n", "no columns layer, expert, tokens"),
        ("c.csv", "layer,expert,tokens\n0,0,x\n", "no whole number"),
        ("c.csv", "layer,expert,tokens\n0,-1,3\n", "below 0"),
        ("c.csv", "layer,expert,tokens\n0,999999999,3\n", "too many"),
        ("c.json", "[[1, 2], [3]]", "no table of counts"),
        ("c.json", "[1, 2]", "expected \\(passes, layers, experts\\)"),
        ("c.json", "[[0.5, 1]]", "no whole numbers"),
        ("c.json", "[[0, 0]]", "no token was counted"),
        ("c.json", '{"weights": 1}', "expected \\(passes, layers, experts\\)"),
        ("c.json", "[[1,", "no table of counts"),
    ],
)
def test_tables_that_hold_no_counts_say_what_is_wrong(name: str, text: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=what) as raised:
        read_expert_counts([write(tmp_path / name, text)])
    assert name in str(raised.value)


def test_a_file_that_is_neither_is_named(tmp_path: Path) -> None:
    path = tmp_path / "dump.pt"
    path.write_bytes(b"\x80\x02\xff\xfe")
    with pytest.raises(InputError, match=r"neither an archive of torch\.save nor text"):
        read_expert_counts([path])
