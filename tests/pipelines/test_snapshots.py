"""Files of what engines told: which target, which order, how long; and what is said of all of them."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dprankdiag.errors import DprankdiagError, UsageError
from dprankdiag.model.bundle import make_document
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.pipelines.diagnose import Options, diagnose
from dprankdiag.pipelines.ledger_files import read_ledger_file
from dprankdiag.pipelines.snapshots import name_ledgers
from tests.ledgers import build_ledger
from tests.proof.ledger_inputs import Rows, write_loads, write_sglang, write_vllm
from tests.views.schema_check import list_errors

SCHEMA = json.loads((Path(__file__).parents[2] / "dprankdiag/views/schema/diagnosis.schema.json").read_text("utf-8"))
EVEN = [24.0] * 8
BUSY_3 = [24.0, 24.0, 24.0, 96.0, 24.0, 24.0, 24.0, 24.0]
PAIRS = 'dp_attention_pairs_total{kind="scheduled"}'
TOKENS = 'realtime_tokens_total{mode="decode"}'


def page(requests: list[float], step: float) -> Rows:
    """Make a page: tokens and pairs follow the requests, and have grown for so many steps."""
    return {
        "num_running_reqs": requests,
        "num_queue_reqs": [0.0] * len(requests),
        "num_used_tokens": [2500.0 * count for count in requests],
        TOKENS: [1000.0 + step * count for count in requests],
        PAIRS: [1e6 + step * 2500.0 * count for count in requests],
    }


def two_pages(folder: Path, requests: list[float], names: tuple[str, str] = ("a.prom", "b.prom"), **how: Any) -> Path:
    folder.mkdir(exist_ok=True)
    for name, step in zip(names, (100.0, 700.0), strict=True):
        write_sglang(folder / name, page(requests, step), **how)
    return folder


def judge(*paths: Path | str, **options: Any) -> Diagnosis:
    return diagnose([Path(path) for path in paths], Options(**options)).diagnosis


def try_judging(folder: Path) -> Diagnosis | DprankdiagError:
    try:
        return judge(folder)
    except DprankdiagError as error:
        return error


def said(diagnosis: Diagnosis) -> list[tuple[str, str, tuple[int, ...]]]:
    return [(finding.engine, finding.cause, finding.ranks) for finding in diagnosis.findings]


def scenarios(fixtures: Path) -> list[Path]:
    folders = [path for name in ("sglang-0.5.*", "vllm-0.33.0") for path in sorted(fixtures.glob(f"{name}/*"))]
    return [folder for folder in folders if len(list(folder.glob("*.prom"))) > 1]


def test_either_order_and_any_names_of_all_scrapes_give_the_same_ledger(fixtures: Path, tmp_path: Path) -> None:
    """Every recorded scenario with two scrapes, under shuffled names and in reversed order."""
    folders = scenarios(fixtures)
    assert len(folders) >= 29
    for number, folder in enumerate(folders):
        pages = sorted(path for path in folder.iterdir() if path.suffix == ".prom" and "scrape" in path.name)
        pages = pages or sorted(folder.glob("metrics_t*.prom"))
        shuffled = random.Random(number).sample(range(len(pages)), len(pages))
        target = tmp_path / str(number)
        target.mkdir()
        renamed = [
            Path(shutil.copy(page, target / f"{name:02d}.prom")) for name, page in zip(shuffled, pages, strict=True)
        ]
        plain, turned = judge(*pages), judge(*renamed[::-1])
        assert (plain.status, plain.headline, plain.findings) == (turned.status, turned.headline, turned.findings), (
            folder
        )
        assert plain.time == turned.time, folder


@pytest.mark.parametrize("names", [("a.prom", "b.prom"), ("z.prom", "a.prom")])
def test_pages_are_ordered_by_their_counters(tmp_path: Path, names: tuple[str, str]) -> None:
    diagnosis = judge(two_pages(tmp_path / "x", BUSY_3, names))
    assert said(diagnosis) == [("default", "load.requests", (3,))]
    assert not any("fell" in note for note in diagnosis.notes)


def test_without_seconds_no_rate_is_told_and_with_the_interval_the_time_is(tmp_path: Path) -> None:
    folder = two_pages(tmp_path / "x", BUSY_3)
    plain, timed = judge(folder), judge(folder, interval_s=15.0)
    assert (plain.time.clock, plain.time.start_ns, plain.time.end_ns) == ("none", None, None)
    assert any("no answer tells the seconds" in note for note in plain.notes)
    assert (timed.time.clock, timed.time.start_ns, timed.time.end_ns) == ("given", 0, 15 * 10**9)
    assert said(plain) == said(timed)


def test_names_and_seconds_of_the_user_win(tmp_path: Path) -> None:
    folder = two_pages(tmp_path / "x", BUSY_3, ("b.prom", "a.prom"))
    diagnosis = judge(f"run@20={folder / 'a.prom'}", f"run@5={folder / 'b.prom'}")
    assert said(diagnosis) == [("run", "load.requests", (3,))]
    assert diagnosis.time.end_ns == 15 * 10**9
    assert {rank.engine for rank in diagnosis.ranks} == {"run"}


def test_seconds_against_the_counters_are_believed_and_the_fall_is_said(tmp_path: Path) -> None:
    folder = two_pages(tmp_path / "x", EVEN)
    diagnosis = judge(f"run@20={folder / 'a.prom'}", f"run@5={folder / 'b.prom'}")
    assert any("counters fell" in note for note in diagnosis.notes)
    assert diagnosis.headline.startswith("Cannot tell which rank is slow: ranks 0-7 restarted")


def test_a_folder_is_of_no_one_moment(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="NAME@SECONDS=FILE"):
        judge(f"run@5={two_pages(tmp_path / 'x', EVEN)}")


def test_two_folders_are_two_targets_named_after_them(tmp_path: Path) -> None:
    one, other = two_pages(tmp_path / "left", EVEN), two_pages(tmp_path / "right", BUSY_3)
    diagnosis = judge(one, other)
    assert said(diagnosis) == [("right", "load.requests", (3,))]
    assert [rank.engine for rank in diagnosis.ranks] == ["left"] * 8 + ["right"] * 8
    assert diagnosis.headline.startswith("right: ")


def test_two_targets_with_equal_labels_in_one_folder_are_refused(tmp_path: Path) -> None:
    folder = two_pages(tmp_path / "x", EVEN)
    for name, step in (("c.prom", 150.0), ("d.prom", 400.0)):
        write_sglang(folder / name, page([96.0] * 4 + [24.0] * 4, step))
    with pytest.raises(UsageError, match="A=PATH B=PATH"):
        judge(folder)


def test_named_targets_of_one_folder_are_apart(tmp_path: Path) -> None:
    folder = two_pages(tmp_path / "x", BUSY_3)
    for name, step in (("c.prom", 150.0), ("d.prom", 400.0)):
        write_sglang(folder / name, page(BUSY_3[::-1], step))
    given = [
        f"{name}={folder / file}" for name, file in zip("AABB", ("a.prom", "b.prom", "c.prom", "d.prom"), strict=True)
    ]
    assert set(said(judge(*given))) == {("A", "load.requests", (3,)), ("B", "load.requests", (4,))}


def test_roles_of_one_folder_are_engines_of_one_diagnosis(tmp_path: Path) -> None:
    for role, requests in (("prefill", EVEN), ("decode", BUSY_3)):
        labels = f'engine_type="{role}",model_name="m",pp_rank="0"'
        for name, step in (("0", 100.0), ("1", 700.0)):
            write_sglang(tmp_path / f"{role}{name}.prom", page(requests, step), labels=labels)
    diagnosis = judge(tmp_path)
    assert said(diagnosis) == [(f"{tmp_path.name}:decode", "load.requests", (3,))]
    assert {rank.engine for rank in diagnosis.ranks} == {f"{tmp_path.name}:decode", f"{tmp_path.name}:prefill"}


def test_engines_of_two_makes_in_one_folder_are_apart(tmp_path: Path) -> None:
    two_pages(tmp_path, EVEN)
    for name, step in (("v0.prom", 100.0), ("v1.prom", 700.0)):
        rows = {
            "num_requests_running": BUSY_3,
            "num_requests_waiting": [0.0] * 8,
            "generation_tokens_total": [step * count for count in BUSY_3],
        }
        write_vllm(tmp_path / name, rows)
    diagnosis = judge(tmp_path)
    assert [(cause, ranks) for _, cause, ranks in said(diagnosis)] == [("load.requests", (3,))]
    assert len({rank.engine for rank in diagnosis.ranks}) == 2


def test_series_without_rank_labels_cannot_be_told_apart(tmp_path: Path) -> None:
    diagnosis = judge(two_pages(tmp_path / "x", BUSY_3, ranked=False))
    assert diagnosis.findings == ()
    assert diagnosis.status == "inconclusive"
    assert "no rank label" in diagnosis.headline
    assert not any("order of their names" in note or "one moment" in note for note in diagnosis.notes)


def test_a_rank_that_is_gone_is_a_suspect_and_the_page_does_not_look_healthy(tmp_path: Path) -> None:
    write_sglang(tmp_path / "a.prom", page(EVEN, 100.0))
    late = {name: [*values[:5], None, *values[6:]] for name, values in page(EVEN, 700.0).items()}
    write_sglang(tmp_path / "b.prom", late)
    diagnosis = judge(tmp_path)
    assert diagnosis.headline.startswith("Cannot tell which rank is slow: rank 5 told nothing")
    assert any(note.startswith("rank 5: should be there") for note in diagnosis.notes)


def test_a_rank_that_restarted_is_said_to_have_and_named_for_nothing(tmp_path: Path) -> None:
    write_sglang(tmp_path / "a.prom", page(EVEN, 700.0))
    again = {name: list(values) for name, values in page(EVEN, 1400.0).items()}
    for name in (TOKENS, PAIRS):
        again[name][2] = 5.0
    write_sglang(tmp_path / "b.prom", again)
    diagnosis = judge(tmp_path)
    assert diagnosis.findings == ()
    assert diagnosis.headline.startswith("Cannot tell which rank is slow: rank 2 restarted")


def test_an_engine_whose_snapshots_stopped_is_told_from_one_answer_given_twice(tmp_path: Path) -> None:
    loads = [{"num_running_reqs": 24, "num_used_tokens": 60000, "timestamp": 100.0} for _ in range(8)]
    write_loads(tmp_path / "a.json", loads, 101.0)
    write_loads(tmp_path / "b.json", loads, 141.0)
    assert [cause for _, cause, _ in said(judge(tmp_path))] == ["ledger.stale"]
    shutil.copy(tmp_path / "a.json", tmp_path / "b.json")
    twice = judge(tmp_path)
    assert twice.findings == ()
    assert any("only one moment" in note for note in twice.notes)


def test_the_only_target_is_called_default_unless_named() -> None:
    ledger = build_ledger({})
    assert [one.name for one in name_ledgers([ledger], ())] == ["default"]
    assert [one.name for one in name_ledgers([ledger], {"default"})] == ["default"]


@pytest.mark.parametrize("content", [b"", b"\xff\xfe\x00", b"{}", b"[1]", b"# HELP a b\n", b'{"loads": 5}', b"SLNS"])
def test_files_that_tell_no_rank_are_refused_in_one_line(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x"
    path.write_bytes(content)
    with pytest.raises(DprankdiagError) as caught:
        read_ledger_file(path)
    assert "\n" not in str(caught.value)


Damage = Callable[[str], str]
LINES = re.compile(r"^(sglang:\w+\{.*\}) (\S+)$", re.MULTILINE)
DAMAGES: dict[str, Damage] = {
    "a third": lambda text: text[: len(text) // 3],
    "half": lambda text: text[: len(text) // 2],
    "all not a number": lambda text: LINES.sub(r"\1 NaN", text),
    "all infinite": lambda text: LINES.sub(r"\1 +Inf", text),
    "all negative": lambda text: LINES.sub(r"\1 -5", text),
    "all zero": lambda text: LINES.sub(r"\1 0", text),
    "all huge": lambda text: LINES.sub(r"\1 1e308", text),
    "capacities of nothing": lambda text: re.sub(
        r"^(sglang:max_total_num_tokens\{.*\}) .*$", r"\1 0", text, flags=re.M
    ),
    "ranks renamed": lambda text: text.replace("dp_rank=", "exported_dp_rank="),
    "ranks gone": lambda text: re.sub(r'dp_rank="\d+",', "", text),
    "ranks without sense": lambda text: re.sub(r'dp_rank="(\d+)"', r'dp_rank="x\1"', text),
    "far ranks": lambda text: re.sub(r'dp_rank="(\d+)"', r'dp_rank="9999999\1"', text),
    "every line twice": lambda text: text + text,
    "lines mixed": lambda text: "\n".join(random.Random(1).sample(text.splitlines(), len(text.splitlines()))),
    "words in between": lambda text: text.replace("\n", "\nnonsense {\n"),
    "one rank": lambda text: "\n".join(line for line in text.splitlines() if 'dp_rank="3"' in line or "#" in line),
    "two ranks": lambda text: "\n".join(line for line in text.splitlines() if re.search('dp_rank="[13]"|#', line)),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["first", "second", "both"])
def test_damaged_pages_end_in_a_document_or_one_line_of_error(tmp_path: Path, damage: str, which: str) -> None:
    """Whatever is wrong: no inner error, a document that keeps its schema, and nobody named who was not uneven."""
    folder = two_pages(tmp_path / "x", EVEN)
    for name, part in (("a.prom", "first"), ("b.prom", "second")):
        if which in (part, "both"):
            path = folder / name
            path.write_text(DAMAGES[damage](path.read_text("utf-8")), "utf-8")
    diagnosis = try_judging(folder)
    if isinstance(diagnosis, DprankdiagError):
        assert "\n" not in str(diagnosis)
        return
    assert list(list_errors(make_document(diagnosis), SCHEMA, SCHEMA)) == []
    allowed = {"ledger.inconsistent"} if damage == "all negative" else set()
    assert {finding.cause for finding in diagnosis.findings} <= allowed
    assert diagnosis.status != "healthy"


@pytest.mark.parametrize("size", [2, 16, 64])
def test_documents_of_any_number_of_ranks_keep_their_schema_and_their_bytes(tmp_path: Path, size: int) -> None:
    requests = [24.0] * size
    requests[1] = 96.0
    folder = two_pages(tmp_path / "x", requests)
    document = make_document(judge(folder, interval_s=10.0))
    assert list(list_errors(document, SCHEMA, SCHEMA)) == []
    assert document == make_document(judge(folder, interval_s=10.0))
    assert [finding["ranks"] for finding in document["findings"]] == [[1]]
