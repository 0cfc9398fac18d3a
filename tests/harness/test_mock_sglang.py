"""What the mock of SGLang answers, as collectors read it and as its world had it."""

from __future__ import annotations

import numpy as np

from dprankdiag.collectors.sglang_loads import SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.sglang_server_info import SglangServerInfo
from dprankdiag.harness.mock_sglang import MockSglang
from tests.harness.served_worlds import LONG_RANK, RANKS, Clock, serve_sglang
from tests.harness.test_fake_engine import ask


def test_collectors_read_the_numbers_of_all_ranks() -> None:
    clock = Clock()
    with MockSglang(*serve_sglang(long=True), clock=clock) as engine:
        clock.now_s += 20
        (metrics,) = SglangMetrics().parse(ask(f"{engine.url}/metrics"), "here")
        (loads,) = SglangLoads().parse(ask(f"{engine.url}/v1/loads"), "here")
        (page,) = SglangLoads().parse(ask(f"{engine.url}/v1/loads?format=prometheus"), "here")
        (info,) = SglangServerInfo().parse(ask(f"{engine.url}/server_info"), "here")
    assert metrics.ranks == loads.ranks == page.ranks == tuple(range(RANKS))
    assert info.facts["num_dp_ranks"] == RANKS
    for name, values in loads.values.items():
        if name in page.values:  # moments are not on the page
            np.testing.assert_array_equal(values, page.values[name])
    assert int(np.argmax(loads.values["load_used_tokens"])) == LONG_RANK
    assert int(np.argmax(metrics.values["scheduled_pairs"])) == LONG_RANK
