import json
from importlib import resources
from typing import Any

import numpy as np
import pytest

from dprankdiag import __version__
from dprankdiag.model.diagnosis import Diagnosis
from dprankdiag.views import json as view
from tests import builders
from tests.views.schema_check import list_errors

SCHEMA = json.loads((resources.files("dprankdiag.views") / "schema" / "diagnosis.schema.json").read_text())
CASES = {
    "findings": builders.diagnosis(),
    "healthy": builders.even_diagnosis(),
    "inconclusive": builders.undecided_diagnosis(),
    "layers": builders.diagnosis(findings=(builders.finding(layers=(0, 4), onset_ns=5, period_ns=7, who="group"),)),
}


def render(diagnosis: Diagnosis) -> str:
    return view.render(diagnosis, {})


def _parse(diagnosis: Diagnosis) -> dict[str, Any]:
    parsed: dict[str, Any] = json.loads(render(diagnosis))
    return parsed


@pytest.mark.parametrize("name", CASES)
def test_the_output_fits_the_shipped_schema(name: str) -> None:
    assert list(list_errors(_parse(CASES[name]), SCHEMA, SCHEMA)) == []


def test_the_schema_notices_a_missing_key_and_a_wrong_value() -> None:
    document = _parse(builders.diagnosis())
    del document["headline"]
    document["status"] = "fine"
    document["findings"][0]["confidence"] = 2
    assert len(list(list_errors(document, SCHEMA, SCHEMA))) == 3


def test_the_document_names_its_schema_and_tool() -> None:
    document = _parse(builders.diagnosis())
    assert document["schema_version"] == 1
    assert document["tool"] == {"name": "dprankdiag", "version": __version__}


def test_floats_keep_six_significant_digits() -> None:
    lost = builders.lost(ratio=0.2166666666, interval=(1234567.89, 1e-20 / 3))
    document = _parse(builders.diagnosis(lost=lost))
    assert document["lost"]["ratio"] == 0.216667
    assert document["lost"]["interval"] == [1234570.0, 3.33333e-21]


def test_what_is_not_a_number_is_null() -> None:
    finding = builders.finding(lost_ratio=float("nan"), interval=(float("-inf"), 1.0))
    document = _parse(builders.diagnosis(findings=(finding,)))
    assert document["findings"][0]["lost_ratio"] is None
    assert document["findings"][0]["interval"] is None


def test_integer_nanoseconds_stay_whole() -> None:
    document = _parse(builders.diagnosis(lost=builders.lost(total_ns=2**53 + 1)))
    assert document["lost"]["total_ns"] == 2**53 + 1


def test_numpy_numbers_become_plain_ones() -> None:
    finding = builders.finding(lost_ns=np.int64(5), lost_ratio=np.float64(0.5), ranks=(np.int16(3),))
    document = _parse(builders.diagnosis(findings=(finding,)))
    assert document["findings"][0]["ranks"] == [3]
    assert document["findings"][0]["lost_ns"] == 5


def test_equal_diagnoses_give_equal_bytes_whatever_the_order_of_step_kinds() -> None:
    one = builders.diagnosis(time=builders.time_account(step_kinds={"decode": 1, "verify": 2}))
    other = builders.diagnosis(time=builders.time_account(step_kinds={"verify": 2, "decode": 1}))
    assert render(one) == render(other)


def test_absent_values_are_null_and_not_left_out() -> None:
    document = _parse(builders.undecided_diagnosis())
    assert document["lost"]["total_ns"] is None
    assert document["ranks"][0]["work_ns"] is None
    assert document["time"]["matched_ratio"] is None


def test_no_character_of_the_output_can_steer_a_terminal() -> None:
    text = render(builders.diagnosis(notes=("\x1b[31m\x7f\x9b\u202e\udcff\n",)))
    assert text.isascii()
    assert all(character == "\n" or character.isprintable() for character in text)
    assert json.loads(text)["notes"] == ["\x1b[31m\x7f\x9b\u202e\udcff\n"]


def test_internal_fields_stay_inside() -> None:
    assert "gpu" not in _parse(builders.diagnosis())["ranks"][0]
