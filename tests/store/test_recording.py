from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dprankdiag.catalog.ledger import load_fields
from dprankdiag.errors import DamagedInput, InputError, UsageError
from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.store.recorder import MIN_BYTES, Recorder, Told
from dprankdiag.store.recording import is_recording, read_recording
from dprankdiag.store.recording_schema import list_tables
from tests.conftest import ROOT
from tests.store.told import GAPS, answers, assert_same, plain_answer

SECOND = 10**9


def _record(path: Path, ticks: Sequence[Sequence[Told]], start_ns: int = 10**18) -> None:
    with Recorder(path) as recorder:
        for tick, told in enumerate(ticks):
            recorder.write(told, start_ns + tick * SECOND)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.lists(answers() | GAPS, max_size=4), min_size=1, max_size=4))
def test_what_was_told_comes_back_exactly(ticks: list[list[Told]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "day.dprec"
        half = len(ticks) // 2
        _record(path, ticks[:half])
        _record(path, ticks[half:], 2 * 10**18)
        told = [item for tick in ticks for item in tick]
        read, gaps = read_recording(path)
        assert list(gaps) == [item for item in told if isinstance(item, NoData)]
        expected = [item for item in told if isinstance(item, LedgerAnswer)]
        for one, other in zip(expected, read, strict=True):
            assert_same(one, other)


def test_a_recording_is_known_by_its_first_bytes_while_it_is_written_and_later(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    with Recorder(path) as recorder:
        assert path.read_bytes()[68:72] == b"DPRK"
        recorder.write([plain_answer()])
    assert is_recording(path)
    assert not is_recording(tmp_path)
    assert not is_recording(tmp_path / "absent")
    assert not is_recording(ROOT / "examples" / "healthy.sqlite")


def test_plain_sqlite_reads_it_with_the_names_of_the_catalogue(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    _record(path, [[plain_answer(0)], [NoData("sglang-loads", "http://a:30000/v1/loads", 5, "timed out")]])
    database = sqlite3.connect(path)
    columns = [row[1] for row in database.execute("PRAGMA table_info(loads)")]
    assert columns == ["answer", "rank", *load_fields()]
    row = database.execute("SELECT moment, seconds, address, scheduled_tokens, used_tokens FROM told WHERE rank = 3")
    assert row.fetchall() == [("2001-09-09 01:46:40", 0.0, "http://a:30000/metrics", 3.0, None)]
    assert database.execute("SELECT status, reason FROM answers WHERE status <> 'answered'").fetchall() == [
        ("failed", "timed out")
    ]
    database.close()


def test_every_table_that_is_declared_is_there_with_its_columns(tmp_path: Path) -> None:
    _record(tmp_path / "a.dprec", [[]])
    database = sqlite3.connect(tmp_path / "a.dprec")
    for table in list_tables():
        found = [row[1] for row in database.execute(f"PRAGMA table_info({table.name})")]
        assert found == [column.name for column in table.columns]
    database.close()


def test_a_field_that_an_older_recording_lacks_becomes_a_column(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    _record(path, [[plain_answer(0)]])
    newer = replace(plain_answer(1), values={"told_by_a_later_release": plain_answer(1).values["sync_wait_s"]})
    _record(path, [[newer]])
    first, second = read_recording(path)[0]
    assert_same(first, plain_answer(0))
    assert_same(second, newer)


def test_what_is_secret_is_not_stored(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    facts = {"api_key": "hush", "launch_command": "serve --api-key hush", "max_total_num_tokens": 5, "hf_token": "hush"}
    told = replace(plain_answer(), where="http://me:hush@a:1/v1/loads?include=all&key=hush", facts=facts)
    gap = NoData("sglang-metrics", "https://me:hush@a/metrics", 1, "GET https://me:hush@a/metrics: refused")
    _record(path, [[told, gap]])
    assert b"hush" not in path.read_bytes()
    (answer,), (failed,) = read_recording(path)
    assert answer.where == "http://a:1/v1/loads?include=all"
    assert answer.facts == {"max_total_num_tokens": 5}
    assert failed.reason == "GET https://a/metrics: refused"


def test_the_oldest_go_when_their_age_comes(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    with Recorder(path, keep_s=40) as recorder:
        for tick in range(150):
            recorder.write([plain_answer(tick)], tick * SECOND)
    kept = read_recording(path)[0]
    assert_same(kept[0], plain_answer(109))
    assert_same(kept[-1], plain_answer(149))
    assert len(kept) == 41


def test_the_file_with_its_log_stays_within_its_size(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    sizes = []
    with Recorder(path, max_bytes=MIN_BYTES) as recorder:
        for tick in range(100):
            recorder.write([plain_answer(tick, ranks=600) for _ in range(2)], tick * SECOND)
            sizes.append(sum(file.stat().st_size for file in tmp_path.glob("a.dprec*") if file.suffix != ".dprec-shm"))
    assert max(sizes) <= MIN_BYTES
    kept = read_recording(path)[0]
    assert 20 < len(kept) < 200
    assert_same(kept[-1], plain_answer(99, ranks=600))


def test_a_smaller_size_is_reached_bit_by_bit_and_given_back(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    _record(path, [[plain_answer(tick, ranks=1800)] for tick in range(100)])
    before = path.stat().st_size
    assert before > 2 * MIN_BYTES
    with Recorder(path, max_bytes=MIN_BYTES) as recorder:
        recorder.write([plain_answer(601)], 2 * 10**18)
        assert path.stat().st_size > MIN_BYTES
        for tick in range(30):
            recorder.write([plain_answer(tick)], 2 * 10**18 + tick)
    assert path.stat().st_size <= MIN_BYTES


def test_facts_that_nothing_refers_to_go_as_well(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    with Recorder(path, keep_s=10) as recorder:
        for tick in range(270):
            recorder.write([replace(plain_answer(tick), facts={"uptime": tick})], tick * SECOND)
    database = sqlite3.connect(path)
    assert database.execute("SELECT count(*) FROM facts").fetchone()[0] < 40
    database.close()
    assert read_recording(path)[0][-1].facts == {"uptime": 269}


_CHILD = """
import sys
from pathlib import Path
from dprankdiag.store.recorder import Recorder
from tests.store.told import plain_answer
recorder = Recorder(Path(sys.argv[1]))
for tick in range(100_000):
    recorder.write([plain_answer(tick)], tick)
    print(tick, flush=True)
"""


def test_kill_9_loses_nothing_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    child = subprocess.Popen([sys.executable, "-c", _CHILD, path], stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert child.stdout is not None
    while int(child.stdout.readline()) < 40:
        assert child.poll() is None
    child.send_signal(signal.SIGKILL)
    last = 40 + len(child.stdout.read().split())
    child.wait()
    child.stdout.close()
    kept = read_recording(path)[0]
    assert last + 1 <= len(kept) <= last + 2
    assert_same(kept[last], plain_answer(last))
    _record(path, [[plain_answer(1)]])
    assert len(read_recording(path)[0]) == len(kept) + 1


def test_a_second_recorder_is_refused_and_a_reader_is_not(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    script = "import sys; from pathlib import Path; from dprankdiag.store.recording import read_recording as r; "
    script += "print(len(r(Path(sys.argv[1]))[0]))"
    with Recorder(path) as recorder:
        recorder.write([plain_answer(0)])
        with pytest.raises(UsageError, match="another recorder writes it"):
            Recorder(path)
        read = subprocess.run([sys.executable, "-c", script, path], capture_output=True, text=True, check=True)
        assert read.stdout == "1\n"
        recorder.write([plain_answer(1)])
    assert len(read_recording(path)[0]) == 2


def test_a_copy_opens_with_and_without_its_log_and_nothing_appears_beside_it(tmp_path: Path) -> None:
    for with_log in (True, False):
        folder = tmp_path / f"copy-{with_log}"
        folder.mkdir()
        with Recorder(tmp_path / "a.dprec") as recorder:
            recorder.write([plain_answer(0)])
            shutil.copy(tmp_path / "a.dprec", folder)
            if with_log:
                shutil.copy(tmp_path / "a.dprec-wal", folder)
        before = sorted(os.listdir(folder))
        assert len(read_recording(folder / "a.dprec")[0]) >= int(with_log)
        assert sorted(os.listdir(folder)) == before


def test_only_the_time_asked_for_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    _record(path, [[plain_answer(tick)] for tick in range(10)], 0)
    assert [answer.taken_ns for answer in read_recording(path, since_ns=3 * SECOND, until_ns=5 * SECOND)[0]] == [
        plain_answer(3).taken_ns,
        plain_answer(4).taken_ns,
    ]
    assert read_recording(path, since_ns=99 * SECOND) == ((), ())


def test_what_is_no_recording_is_refused_and_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "notes.txt"
    other.write_text("mine")
    with pytest.raises(UsageError, match="exists and is no recording"):
        Recorder(other)
    assert other.read_text() == "mine"
    with pytest.raises(InputError, match="no recording"):
        read_recording(other)
    for path in (tmp_path, tmp_path / "absent" / "a.dprec"):
        with pytest.raises(UsageError, match="cannot be written"):
            Recorder(path)


def test_a_newer_version_and_a_broken_file_are_told(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    _record(path, [[plain_answer(tick)] for tick in range(200)])
    broken = tmp_path / "b.dprec"
    broken.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(DamagedInput, match="broken recording"):
        read_recording(broken)
    database = sqlite3.connect(path)
    database.execute("PRAGMA user_version = 99")
    database.close()
    with pytest.raises(InputError, match="newer version"):
        read_recording(path)
    with pytest.raises(UsageError, match="newer version"):
        Recorder(path)


_FULL = """
import resource, sys
from pathlib import Path
from dprankdiag.store.recorder import Recorder
from tests.store.told import plain_answer
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
recorder = Recorder(Path(sys.argv[1]))
for tick in range(10_000):
    try:
        recorder.write([plain_answer(tick, ranks=300)], tick)
    except Exception as error:
        print(type(error).__name__, tick, error)
        break
"""


def test_a_file_that_can_grow_no_more_is_one_line_and_keeps_what_it_has(tmp_path: Path) -> None:
    path = tmp_path / "a.dprec"
    done = subprocess.run([sys.executable, "-c", _FULL, path], capture_output=True, text=True, cwd=ROOT, check=True)
    kind, tick, reason = done.stdout.split(" ", 2)
    assert kind == "UsageError"
    assert str(path) in reason
    assert reason.count("\n") == 1
    assert len(read_recording(path)[0]) == int(tick)
