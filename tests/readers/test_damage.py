from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.errors import DamagedInput
from dprankdiag.model.schema import count_rows
from dprankdiag.readers import nsys_database
from dprankdiag.readers.nsys_sqlite import read
from tests.readers.builders import KERNEL, MEMCPY, ExportBuilder, global_pid
from tests.readers.checks import assert_equal, check_tables, refuse_to_walk

PAYLOAD = "real-nvtx-4proc-2022.4.2.sqlite"


def fill_pages(path: Path, n_kernels: int) -> None:
    with ExportBuilder(path) as export:
        for number in range(n_kernels):
            export.kernel(5 + number % 2, 1000 * number, 1000 * number + 500, f"k{number % 3}", gridX=1 + number % 70)
        export.range(5, 0, 10, "step")


def test_a_bad_page_keeps_the_rows_before_it_and_the_other_tables(tmp_path: Path) -> None:
    path = tmp_path / "a.sqlite"
    fill_pages(path, 30_000)
    content = bytearray(path.read_bytes())
    middle = len(content) // 4096 // 2 * 4096
    content[middle : middle + 4096] = bytes(4096)
    path.write_bytes(content)
    reading = read(path)
    check_tables(reading)
    assert reading.source.status == "partial"
    assert 10_000 < reading.source.kernels < 20_000
    assert KERNEL in reading.source.warnings[0]
    assert count_rows(reading.tables["ranges"]) == 1


def test_both_ways_to_read_agree_also_on_a_bad_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.sqlite"
    fill_pages(path, 80_000)
    for damage in (False, True):
        if damage:
            content = bytearray(path.read_bytes())
            middle = len(content) // 4096 * 3 // 4 * 4096
            content[middle : middle + 4096] = bytes(4096)
            path.write_bytes(content)
        fast = read(path)
        with monkeypatch.context() as patch:
            patch.setattr(nsys_database, "walk_rows", refuse_to_walk)
            plain = read(path)
        assert_equal(plain, fast)


def test_a_value_that_is_no_integer_stops_its_table_only(tmp_path: Path) -> None:
    with ExportBuilder(tmp_path / "a.sqlite") as export:
        export.kernel(5, 1, 2)
        export.add(MEMCPY, start=5, end="late", bytes=64, copyKind=2, deviceId=0, streamId=1, globalPid=global_pid(5))
    reading = read(tmp_path / "a.sqlite")
    assert reading.source.status == "partial"
    assert reading.source.kernels == 1


def test_the_real_payload_survives_a_zeroed_page_anywhere(payloads: Path, tmp_path: Path) -> None:
    content = (payloads / "nsys" / PAYLOAD).read_bytes()
    size = int.from_bytes(content[16:18], "big")
    path, outcomes = tmp_path / "a.sqlite", set()
    for page in range(1, len(content) // size, 16):
        path.write_bytes(content[: page * size] + bytes(size) + content[(page + 1) * size :])
        try:
            reading = read(path)
        except DamagedInput:
            outcomes.add("damaged")
        else:
            check_tables(reading)
            outcomes.add(reading.source.status)
    assert "partial" in outcomes
