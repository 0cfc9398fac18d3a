"""One number of a device over a window, and whether it stands out from its peers'."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dprankdiag.analysis.device_spread import stands_out, sum_up
from dprankdiag.catalog.device_series import DeviceRow, load_device_series
from dprankdiag.model.devices import DeviceSeries

ROWS = {row.reading: row for row in load_device_series()}
CLOCK, HEAT = ROWS["SM clock"], ROWS["clocks held down for heat or by the power supply"]
XID, REPLAYS, SWITCHES = ROWS["XID error"], ROWS["PCIe replays"], ROWS["context switches"]
EVER = (0, 10**18)


def series(*values: float) -> DeviceSeries:
    return DeviceSeries("x", {}, tuple((10**9 * at, value) for at, value in enumerate(values)))


@pytest.mark.parametrize(
    "row, values, told",
    [
        (CLOCK, (1700, 1800), 1750.0),
        (HEAT, (0, 64, 8, 128, 4, 0), 0.5),
        (HEAT, (0, 64, 64, 0), 0.0),  # a moment, no state
        (HEAT, (4, 4, 4, 1, 2), 0.0),  # the power limit, idle, and a setting are not heat
        (XID, (0, 0, 79, 79), 1.0),
        (XID, (31, 31, 31), 0.0),  # of before
        (XID, (31, 0, 0), 0.0),
        (REPLAYS, (5, 7, 7, 9), 4.0),
        (REPLAYS, (5, 7, 1, 2), 4.0),  # began anew
        (replace(REPLAYS, reads="rate"), (0, 10, 20), 10.0),
        (CLOCK, (1700,), None),
        (CLOCK, (), None),
    ],
)
def test_a_reading_is_one_number(row: DeviceRow, values: tuple[float, ...], told: float | None) -> None:
    assert sum_up(row, series(*values), EVER, None) == told


def test_only_the_window_counts() -> None:
    assert sum_up(CLOCK, series(1, 1, 1700, 1800, 1), (2 * 10**9, 3 * 10**9), None) == 1750.0


def test_what_is_divided_by_processors_is_not_told_without_their_number() -> None:
    assert sum_up(SWITCHES, series(0, 800), EVER, 8.0) == 100.0
    assert sum_up(SWITCHES, series(0, 800), EVER, None) is None


@pytest.mark.parametrize(
    "row, own, peers, out",
    [
        (CLOCK, 1200, (1750, 1755, 1760), True),
        (CLOCK, 1740, (1750, 1755, 1760), False),  # within 3 %
        (CLOCK, 1900, (1750, 1755, 1760), False),  # the other direction
        (CLOCK, 1400, (1300, 1755, 1760, 1760), False),  # a peer is slower
        (CLOCK, 1600, (1500, 1900, 1700, 1800), False),  # within their own spread
        (CLOCK, 1200, (1750, 1755), None),  # too few to have a spread
        (CLOCK, 1200, (), None),
        (REPLAYS, 4, (0, 0), True),
        (REPLAYS, 4, (1, 0), False),
        (REPLAYS, 0, (0, 0), False),
        (REPLAYS, 4, (0, 0, 0), True),
        (REPLAYS, 4, (3, 4, 5), False),
        (HEAT, 0.5, (0.0, 0.0, 0.0), True),
        (HEAT, 0.0, (0.0, 0.0, 0.0), False),
    ],
)
def test_a_device_stands_out_beyond_the_spread_of_its_peers(
    row: DeviceRow, own: float, peers: tuple[float, ...], out: bool | None
) -> None:
    assert stands_out(row, own, peers) is out
