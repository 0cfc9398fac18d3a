"""Each part of the page is renewed alone."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

from dprankdiag.harness.faults import slow_gpu
from dprankdiag.harness.scoreboard import Scoreboard
from dprankdiag.harness.world import Physics
from tests.bench.accuracy import write_section
from tests.bench.recordings import Draw, compare_ablated, join_figures, list_runs, list_tables
from tests.bench.table import Section, write_table
from tests.harness.outcomes import judge, know, perfect, tell

SLOW, CALM = know(slow_gpu(1, 1.5)), know(suite="H")


def test_a_section_takes_the_place_of_its_former_self_and_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.md"
    for title, intro in (("Engines", "old"), ("Recordings", "kept"), ("Engines", "new")):
        page = write_section(Section(title, intro, (write_table(("what", "measured"), [("a", 1)]),)), path)
    assert path.read_text("utf-8") == page
    assert page.count("## Engines") == page.count("## Recordings") == 1
    assert "old" not in page
    assert page.index("## Engines") < page.index("## Recordings")
    assert "new\n\n| what | measured |\n|---|---|\n| a | 1 |" in page


def test_figures_of_several_physics_stand_side_by_side() -> None:
    here, elsewhere = Scoreboard((perfect(SLOW), perfect(CALM))), Scoreboard((perfect(CALM),))
    rows = {row[0]: row[1:] for row in join_figures({"fixed": here, "other": elsewhere})}
    assert rows["alarms that name a rank without fault"] == ("0", f"{here.others_named()}, yes", "0/1 (0.00–0.79), yes")
    assert rows["culprit named, one, steps 10 % longer"][2] == "–"
    assert "cases, other" in list_tables({"fixed": here, "other": elsewhere})[0]


def test_what_is_drawn_names_its_physics_but_for_the_first() -> None:
    runs = list_runs()
    assert set(runs) == set(get_args(Physics))
    assert "--physics" not in Draw("S", 9, 30_000).list_options("fixed")
    assert Draw("R").list_options("roofline") == ["--seed", "11", "--jobs", "2", "--physics", "roofline"]


def test_a_stage_left_out_is_held_against_the_whole() -> None:
    wrong = judge(SLOW, tell(SLOW.truths[0], cause="load.context"))
    whole, without = Scoreboard((perfect(SLOW), perfect(CALM))), Scoreboard((wrong, perfect(CALM)))
    table = compare_ablated(whole, {"work-model": without}).splitlines()
    assert table[2].startswith("| dprankdiag | 1/1")
    assert table[3].startswith("| without work model | 0/1 (0.00–0.79) | 1/1")
