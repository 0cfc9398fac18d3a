"""What a what-if was saved as is read back whole, and told from other JSON."""

from __future__ import annotations

from pathlib import Path

import pytest

from dprankdiag.errors import DamagedInput, InputError
from dprankdiag.store.whatif_file import is_whatif, load_whatif
from dprankdiag.views import comparison, json
from dprankdiag.views.whatif import render
from tests import builders
from tests.dashboard.whatifs import make_whatif


def test_what_was_saved_is_read_back_as_it_was_and_as_it_is_published(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    path.write_text(render(make_whatif(), "json"))
    assert is_whatif(path)
    assert load_whatif(path) == make_whatif()
    assert render(load_whatif(path), "json") == path.read_text()


def test_other_files_are_told_apart(tmp_path: Path) -> None:
    texts = {
        "diagnosis.json": json.render(builders.diagnosis(), {}),
        "comparison.json": comparison.render(builders.comparison(), "json"),
        "cut.json": render(make_whatif(), "json")[:300],
        "trace.json": '{"traceEvents": []}',
        "empty.json": "",
        "list.json": "[1]",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
        assert not is_whatif(tmp_path / name)
    assert not is_whatif(tmp_path / "nowhere.json")
    assert not is_whatif(tmp_path)


def test_what_cannot_be_read_is_said_with_the_mend(tmp_path: Path) -> None:
    path = tmp_path / "options.json"
    text = render(make_whatif(), "json")
    with pytest.raises(InputError, match="cannot be read"):
        load_whatif(path)
    path.write_text(text[:300])
    with pytest.raises(DamagedInput, match="not JSON"):
        load_whatif(path)
    path.write_text(text.replace('"schema_version": 1', '"schema_version": 9'))
    with pytest.raises(InputError, match="schema version 9, expected 1"):
        load_whatif(path)
    path.write_text(text.replace('"verdict": "better"', '"verdict": "best"'))
    with pytest.raises(InputError, match="not a what-if"):
        load_whatif(path)
