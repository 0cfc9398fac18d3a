"""A simulated day of 320 ranks: nothing but the fault is named, memory stays flat, and the recording keeps its size."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.bench.measure import weigh
from tests.bench.soak import INTERVAL_S, follow_day_apart, plan_day
from tests.bench.table import Section, put_section, write_table

pytestmark = pytest.mark.bench

TITLE = "A simulated day of 320 ranks"
INTRO = """Watcher and recorder as `watch` and `record` run them, poll by poll in the day's own time
(`./dev bench tests/bench/test_soak.py`): a night almost without requests, bursts, lost polls, a crash, two restarts
that change the number of ranks, and one host that is late for an hour. The recording keeps two hours."""


def test_a_day_of_320_ranks_names_the_late_host_alone_and_grows_nothing(tmp_path: Path) -> None:
    weight = weigh(follow_day_apart(tmp_path))
    day = json.loads(weight.output)
    plan = plan_day()
    (fault,) = plan.world.faults
    length_s = fault.end_s - fault.start_s
    rows = [
        ("verdicts that no fault explains", len(day["false"]), "= 0", not day["false"]),
        ("times the right verdict went away while its fault was there", day["flaps"], "= 0", day["flaps"] == 0),
        ("onset to verdict", f"{day['wait_s']} s", f"≤ {6 * INTERVAL_S:g} s", (day["wait_s"] or 1e9) <= 6 * INTERVAL_S),
        (
            "right verdict stands while the fault lasts",
            f"{day['held_s'] / length_s:.1%}",
            "≥ 90 %",
            day["held_s"] >= 0.9 * length_s,
        ),
        (
            "growth of memory from a third of the day on",
            f"{day['growth_ratio']:.2%}",
            "≤ 2 %",
            day["growth_ratio"] <= 0.02,
        ),
        (
            "growth of the recording, likewise",
            f"{day['file_growth_ratio']:.1%}",
            "≤ 10 %",
            day["file_growth_ratio"] <= 0.1,
        ),
        ("oldest row", f"{day['kept_s'] / 3600:.2f} h", "≤ 2.02 h", day["kept_s"] <= plan.keep_s + 3 * INTERVAL_S),
        ("ranks seen", " → ".join(map(str, day["rank_counts"])), "320 → 240", day["rank_counts"] == [320, 240]),
    ]
    table = write_table(
        ("what", "measured", "bar", "holds"), [(*row[:3], "yes" if row[3] else "**no**") for row in rows]
    )
    size = (
        f"{day['polls']:,} polls, {weight.cpu_s:.0f} s of CPU with the simulation; memory "
        f"{day['rss_bytes'] / 2**20:.0f} MiB, recording {day['file_bytes'] / 2**20:.0f} MiB."
    )
    print(put_section(Section(TITLE, INTRO, (table, size))))
    assert all(row[3] for row in rows), table + "\n" + "\n".join(day["false"])
