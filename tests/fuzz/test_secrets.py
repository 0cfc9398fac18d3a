"""A secret that recordings carry along, planted wherever they can, is in nothing that the program says or writes."""

from __future__ import annotations

import gzip
import json
import sqlite3
import zipfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.model.ledgers import LedgerAnswer, NoData
from dprankdiag.store.recorder import Recorder
from tests.fuzz.damages import unpack
from tests.fuzz.subjects import PAYLOADS, Subject, list_subjects
from tests.proof.command import run_here
from tests.store.told import plain_answer

SECRET = "hushd0ntT3ll"
WHOLE = {f"{one.kind} {one.name}": one for one in list_subjects()}
LAUNCH = f"python -m sglang.launch_server --api-key {SECRET} --dp 4"
ENVIRONMENT = f"PATH=/bin\0HF_TOKEN={SECRET}\0OPENAI_API_KEY={SECRET}\0"


def plant_in_export(path: Path) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.execute("UPDATE TARGET_INFO_SYSTEM_ENV SET value = ? WHERE name <> 'Hostname'", (SECRET,))
        database.execute("INSERT INTO META_DATA_CAPTURE (name, value) VALUES ('COMMAND_LINE', ?)", (LAUNCH,))
        database.execute("INSERT INTO META_DATA_CAPTURE (name, value) VALUES ('ENVIRONMENT', ?)", (ENVIRONMENT,))
        database.execute("INSERT INTO StringIds VALUES (900001, ?)", (ENVIRONMENT,))
        database.execute("INSERT INTO StringIds VALUES (900002, ?)", (LAUNCH,))
        database.execute("UPDATE StringIds SET value = value || ? || ?", ("\0", ENVIRONMENT))
        database.commit()


def plant_in_trace(path: Path) -> None:
    document = json.loads(unpack(path.read_bytes()))
    document |= {"env": {"HF_TOKEN": SECRET}, "command": LAUNCH, "Authorization": f"Bearer {SECRET}"}
    for event in document["traceEvents"]:
        if isinstance(event.get("args"), dict):
            event["args"]["api_key"] = SECRET
    document["traceEvents"].append(
        {"ph": "X", "cat": "cpu_op", "name": f"https://me:{SECRET}@host/?key={SECRET}", "ts": 1, "dur": 1, "pid": 1}
    )
    path.write_bytes(gzip.compress(json.dumps(document).encode(), 1))


def plant_in_page(path: Path) -> None:
    """Add labels, comments and series as a careless proxy may."""
    if path.suffix == ".json":
        document = json.loads(path.read_text())
        document |= {"api_key": SECRET, "server_args": {"api_key": SECRET, "command": LAUNCH}}
        path.write_text(json.dumps(document))
        return
    text = path.read_text().replace("{", f'{{api_key="{SECRET}",')
    path.write_text(f'# HELP key {SECRET}\nkey{{api_key="{SECRET}"}} 1\n{text}')


def plant_in_log(path: Path) -> None:
    lines = path.read_text().splitlines()
    lines.insert(3, f"[2026-03-01 10:00:00] server_args=ServerArgs(api_key='{SECRET}')")
    lines.insert(4, f"GET http://me:{SECRET}@h:1/metrics?token={SECRET} Authorization: Bearer {SECRET}")
    lines = [f"{line}, api_key: {SECRET}" if "Decode" in line else line for line in lines]
    path.write_text("\n".join(lines) + "\n")


def plant_in_recording(path: Path) -> None:
    path.unlink()
    facts = {"api_key": SECRET, "launch_command": LAUNCH, "max_total_num_tokens": 5, "admin_api_key": SECRET}
    where = f"http://me:{SECRET}@a:30000/metrics?key={SECRET}"
    with Recorder(path) as recorder:
        for tick in range(5):
            answer = plain_answer(tick)
            told: list[LedgerAnswer | NoData] = [replace(answer, where=where, facts=facts)]
            told.append(NoData("sglang-loads", where, tick, f"GET {where}: refused"))
            recorder.write(told, 10**18 + tick * 10**9)


PLANTS: dict[str, Callable[[Path], None]] = {
    "nsys SQLite slow_gpu": plant_in_export,
    "torch traces slow_gpu": plant_in_trace,
    "metrics and loads example": plant_in_page,
    "engine log sglang": plant_in_log,
    "recording count-skew": plant_in_recording,
}


def list_written(path: Path) -> Iterator[bytes]:
    """List what is in a file, unpacked where it is an archive."""
    yield path.read_bytes()
    if path.suffix == ".dprank":
        with zipfile.ZipFile(path) as archive:
            yield from map(archive.read, archive.namelist())


def write_planted(subject: Subject, folder: Path, plant: Callable[[Path], None]) -> str:
    words = subject.write(folder)
    for path in sorted((folder / "given").rglob("*")):
        if path.is_file():
            plant(path)
            assert SECRET.encode() in unpack(path.read_bytes()) or plant is plant_in_recording
    return words[1]


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_secret_reaches_no_output(name: str, tmp_path: Path) -> None:
    given = write_planted(WHOLE[name], tmp_path, PLANTS[name])
    out = tmp_path / "out"
    out.mkdir()
    outputs = [out / f"x{end}" for end in (".txt", ".json", ".md", ".html", ".perfetto.json", ".dprank")]
    options: list[Any] = [word for path in outputs for word in ("-o", path)]
    answer = run_here("analyze", given, "--verbose", "--debug", *options)
    assert answer.code == 0, answer.stderr
    assert SECRET not in answer.stdout + answer.stderr
    for path in outputs:
        assert all(SECRET.encode() not in content for content in list_written(path)), path.name


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_secret_is_in_no_message_about_a_file_that_is_cut(name: str, tmp_path: Path) -> None:
    given = write_planted(WHOLE[name], tmp_path, PLANTS[name])
    for path in sorted((tmp_path / "given").rglob("*")):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size * 2 // 3])
    answer = run_here("analyze", given, "--debug")
    assert SECRET not in answer.stdout + answer.stderr


def test_an_answer_about_the_server_gives_nothing_away(tmp_path: Path) -> None:
    source = PAYLOADS / "sglang-0.5.23" / "count-skew" / "v1_loads_t0.json"
    told = {"api_key": SECRET, "admin_api_key": SECRET, "dp_size": 8, "launch_command": LAUNCH, "version": "0.5.23"}
    (tmp_path / "loads.json").write_bytes(source.read_bytes())
    (tmp_path / "server_info.json").write_text(json.dumps(told))
    answer = run_here("analyze", tmp_path, "--format", "json", "--debug")
    assert SECRET not in answer.stdout + answer.stderr
