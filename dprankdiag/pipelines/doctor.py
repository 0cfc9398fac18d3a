"""Examine targets of any kind."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from dprankdiag.collectors.http import Access
from dprankdiag.collectors.prometheus_select import Matcher
from dprankdiag.model.checkup import Checkup
from dprankdiag.pipelines.engine_doctor import EngineDoctor
from dprankdiag.pipelines.prometheus_doctor import PrometheusDoctor
from dprankdiag.pipelines.sources import PROMETHEUS

if TYPE_CHECKING:
    import httpx


def examine(
    targets: Sequence[str],
    access: Access | None = None,
    matchers: tuple[Matcher, ...] = (),
    *,
    transport: httpx.BaseTransport | None = None,
) -> tuple[Checkup, ...]:
    """Examine engines together, so that nodes of one are seen as one, and each Prometheus by itself.

    Args:
        matchers: choose series of a Prometheus by their labels.
        transport: stands in for the network.

    Raises:
        UsageError: a target is no usable address.
    """
    engines = [target for target in targets if not target.startswith(PROMETHEUS)]
    stores = [target for target in targets if target.startswith(PROMETHEUS)]
    with (
        closing(EngineDoctor(access, transport=transport)) as doctor,
        closing(PrometheusDoctor(access, transport=transport)) as store_doctor,
    ):
        found = list(doctor.examine(engines))
        for store in stores:
            found += store_doctor.examine(store, matchers)
    return tuple(found)
