"""Readings of other exporters: each with its source, none that says more than it can."""

from __future__ import annotations

import re

from dprankdiag.catalog.device_series import load_device_series


def test_every_reading_names_its_source_and_what_it_speaks_for() -> None:
    for row in load_device_series():
        assert re.search(r"dcgm|DCGM|node_exporter", row.source), row.reading
        assert row.causes
        assert all(cause.startswith("single_point.") for cause in row.causes)


def test_readings_have_names_of_their_own() -> None:
    names = [row.reading for row in load_device_series()]
    assert len(set(names)) == len(names)


def test_series_are_those_of_the_exporter_of_the_device() -> None:
    for row in load_device_series():
        prefix = {"gpu": "DCGM_FI_DEV_", "host": "node_"}[row.of]
        assert all(name.startswith(prefix) for name in row.series), row.reading
