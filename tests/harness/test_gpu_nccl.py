"""A rank of its own GPU: on a CPU, where Triton interprets the kernels and gloo stands in for NCCL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dprankdiag.harness.cpu_collectives import Gloo  # noqa: E402  (triton reads its variable as it is imported)
from dprankdiag.harness.gpu_layer import TARGET_NS, Layer  # noqa: E402
from dprankdiag.harness.gpu_nccl import Gpu, NcclDevice  # noqa: E402
from dprankdiag.harness.run_plan import Plan, give_orders  # noqa: E402
from dprankdiag.harness.run_steps import GATHER, STEP, Log, run_steps  # noqa: E402

PLAN = Plan("small", ranks=1, steps=2, layers=2, requests=4, context_tokens=8)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NcclDevice]:
    folder: Path = tmp_path_factory.mktemp("meeting")
    group = Gloo(0, 1, (folder / "rendezvous").as_uri())

    # Three times little, three times much: a round takes longer than any part should.
    times = cycle([0, 0, 0, *[100 * max(TARGET_NS.values())] * 3])
    yield NcclDevice(group, 1, 2, Gpu("cpu", Layer("cpu", 2, small=True), lambda: None, lambda launch: next(times)))
    group.close()


def test_a_rank_goes_through_all_steps_on_its_gpu(device: NcclDevice) -> None:
    (orders,) = give_orders(PLAN)
    device.warm_up(orders)
    log = Log()
    run_steps(orders, device, log)
    texts = [text for _, _, text, _ in log.rows]
    assert (texts.count(STEP), texts.count(GATHER)) == (2, 4)
    rows = device.layer.rows[:2] @ device.layer.weights[0]
    assert torch.allclose(device.layer.made[:2], rows, atol=1e-4)


def test_hosts_tell_each_other_what_comes(device: NcclDevice) -> None:
    assert device.announce(7) == 7


@pytest.mark.parametrize("messages", [1, 2])
def test_a_collective_moves_as_many_messages_as_it_should(device: NcclDevice, messages: int) -> None:
    device._all.zero_()
    device.gather(messages)
    moved = np.flatnonzero(device._all.numpy())
    assert moved[-1] < len(device._own) * messages // 2 <= moved[-1] + 10
    device.scatter(messages)
    assert torch.equal(device._back[: moved[-1]], device._own[: moved[-1]])
