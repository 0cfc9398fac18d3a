"""What may be written for a file: its path, a target's name before it, and seconds."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import UsageError
from dprankdiag.readers.named_paths import NamedPath, split_named

names = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="=@/\\"), min_size=1, max_size=12)
files = st.text(st.characters(codec="ascii", min_codepoint=33, exclude_characters="/\\"), min_size=1, max_size=12)


@given(names, files)
def test_a_name_is_what_stands_before_the_first_equals_sign(name: str, file: str) -> None:
    assert split_named(Path(f"{name}={file}")) == NamedPath(Path(file), name)


@given(names, files, st.floats(0, 1e6).map(lambda number: round(number, 3)))
def test_seconds_stand_behind_the_name(name: str, file: str, seconds: float) -> None:
    assert split_named(Path(f"{name}@{seconds}={file}")) == NamedPath(Path(file), name, seconds)


@pytest.mark.parametrize("given", ["t0.prom", "folder/t0.prom", "a/b=c.prom", "a@5/b.prom", "=t0.prom"])
def test_a_plain_path_has_no_name(given: str) -> None:
    assert split_named(Path(given)) == NamedPath(Path(given))


def test_a_file_that_is_called_just_so_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a=b.prom").write_text("x")
    assert split_named(Path("a=b.prom")) == NamedPath(Path("a=b.prom"))
    assert split_named(Path("a=c.prom")) == NamedPath(Path("c.prom"), "a")


def test_a_path_that_holds_an_equals_sign_may_be_named() -> None:
    assert split_named(Path("x@5=/runs/k=v/t0.prom")) == NamedPath(Path("/runs/k=v/t0.prom"), "x", 5.0)


@pytest.mark.parametrize("seconds", ["", "x", "nan", "inf", "-inf", "5s", "1,5"])
def test_seconds_that_are_no_number_are_refused_with_an_example(seconds: str) -> None:
    with pytest.raises(UsageError, match=r"NAME@SECONDS=PATH, as in a@15=t1\.prom"):
        split_named(Path(f"a@{seconds}=t.prom"))
