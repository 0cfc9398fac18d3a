import json
from dataclasses import dataclass

import pytest

from dprankdiag.views.kernels import render_json, render_text, sum_families


@dataclass(frozen=True, slots=True)
class Row:
    family: str
    operation: str
    name: str
    calls: int
    total_ns: int
    share_ratio: float
    ranks: tuple[int, ...] = (0, 1)


ROWS = (
    Row("gemm", "", "nvjet_hsh_128x256", 20, 3_000_000, 0.3),
    Row("attention", "", "flash_fwd_kernel", 10, 4_000_000, 0.4),
    Row("attention", "", "mla_decode", 10, 1_000_000, 0.1),
    Row("collective", "all_gather", "ncclDevKernel_AllGather", 10, 1_500_000, 0.15),
    Row("other", "", "my\x1b[31m_kernel", 3, 500_000, 0.05),
)


def test_families_add_up_to_the_names() -> None:
    families = sum_families(ROWS)
    assert [entry["family"] for entry in families] == ["attention", "gemm", "collective", "other"]
    assert sum(entry["total_ns"] for entry in families) == sum(row.total_ns for row in ROWS)
    assert sum(entry["share_ratio"] for entry in families) == pytest.approx(1.0)


def test_the_page_lists_families_and_unknown_names_with_their_share() -> None:
    text = render_text("run.sqlite", ROWS)
    assert "Names that no pattern knows (5.0 % of the time)" in text
    assert "my\\x1b[31m_kernel" in text
    assert "collective/all_gather" in text


def test_a_trace_without_unknown_names_says_so() -> None:
    assert "Every name is known." in render_text("run.sqlite", ROWS[:-1])


def test_a_trace_without_kernels_says_so() -> None:
    assert "No kernel was recorded." in render_text("run.sqlite", ())


def test_the_json_has_every_name_and_closes() -> None:
    document = json.loads(render_json("run.sqlite", ROWS))
    assert document["total_ns"] == sum(entry["total_ns"] for entry in document["families"])
    assert document["names"][0]["name"] == "flash_fwd_kernel"
    assert document["names"][1]["operation"] is None


def test_long_lists_say_how_much_they_leave_out() -> None:
    rows = [Row("gemm", "", f"kernel_{number}", 1, 1000 - number, 0.01) for number in range(40)]
    assert "and 15 more" in render_text("run.sqlite", rows)
