"""`dprankdiag whatif` of recorded steps, as a user calls it."""

from __future__ import annotations

import json
import os
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from dprankdiag.store.bundle import save_bundle
from tests.pipelines.builders import claim, late_for, see
from tests.pipelines.sides import give

Run = Callable[..., Result]
LOG = '{"arrival_s": 0, "input_tokens": 5, "output_tokens": 3}\n'


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    seen = see(late_for(0.2))
    side = give(seen, claim(seen))
    path = tmp_path / "run.dprank"
    save_bundle(path, side.diagnosis, side.tables)
    return path


def test_a_bundle_says_what_its_steps_would_gain(run: Run, bundle: Path) -> None:
    told = run("whatif", bundle, "--engine", "sglang", "--engine-release", "0.5.23")
    assert told.exit_code == 0
    assert told.output.startswith("Without load.context on rank 1: saves 20 % of the step")
    assert "Options, by the time that steps save" in told.output
    assert "set --load-balance-method total_tokens" in told.output
    assert "What requests see of it" not in told.output


def test_the_document_names_the_bundle_and_its_options(run: Run, bundle: Path) -> None:
    told = json.loads(run("whatif", bundle, "--format", "json").output)
    assert (told["source"]["kind"], told["source"]["paths"]) == ("bundle", [str(bundle)])
    assert told["best"] == ["load.f1"]
    assert [option["key"] for option in told["options"]] == ["load.f1", "load.even_steps"]
    assert told["options"][1]["gain_ratio"]["value"] is None


def test_an_option_that_gains_can_fail_a_script(run: Run, bundle: Path) -> None:
    assert run("whatif", bundle, "--fail-on", "better").exit_code == 1
    assert run("whatif", bundle, "--fail-on", "inconclusive").exit_code == 0


def test_a_dump_that_would_run_something_is_refused_in_one_line(run: Run, bundle: Path, tmp_path: Path) -> None:
    class Runs:
        def __reduce__(self) -> tuple[object, ...]:
            return os.system, (f"touch {tmp_path / 'pwned'}",)

    dump = tmp_path / "dump.pt"
    with zipfile.ZipFile(dump, "w") as archive:
        archive.writestr("dump/data.pkl", pickle.dumps({"logical_count": Runs()}))
    told = run("whatif", bundle, "--experts", dump)
    assert told.exit_code == 3
    assert "nothing in it was run" in told.stderr
    assert told.stderr.count("\n") == 1
    assert not (tmp_path / "pwned").exists()


@pytest.mark.parametrize(
    "extra,what",
    [
        (["other.jsonl"], "requests and recorded steps are asked apart"),
        (["--experts", "nosuch.pt"], "no such file"),
        (["copy.dprank"], "of which one is a bundle"),
    ],
)
def test_what_cannot_be_asked_is_a_usage_error(extra: list[str], what: str, run: Run, bundle: Path) -> None:
    (bundle.parent / "copy.dprank").write_bytes(bundle.read_bytes())
    (bundle.parent / "other.jsonl").write_text(LOG, "utf-8")
    given = [one if one.startswith("--") else str(bundle.parent / one) for one in extra]
    told = run("whatif", bundle, *given)
    assert told.exit_code == 2
    assert what in told.stderr


def test_experts_of_requests_are_refused(run: Run, tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    log.write_text(LOG, "utf-8")
    told = run("whatif", log, "--rearrange-every", "100")
    assert told.exit_code == 2
    assert "--rearrange-every" in told.stderr
