"""The Triton kernels, interpreted on a CPU: what they compute, and that a lost rank ends the wait of the others."""

from __future__ import annotations

import os
from typing import Any

import pytest

os.environ.setdefault("TRITON_INTERPRET", "1")
torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from dprankdiag.harness import gpu_kernels as kernels  # noqa: E402  (triton reads its variable as it is imported)
from dprankdiag.harness.gpu_layer import EXPERTS, GROUPS, Layer  # noqa: E402


@pytest.fixture(scope="module")
def layer() -> Layer:
    torch.manual_seed(1)
    return Layer("cpu", 3, small=True)


def attend(layer: Layer, tokens: int) -> list[Any]:
    """Attend to each program's share of the tokens."""
    shares = []
    for part in range(layer.programs):
        begins = range(part * layer.tokens, tokens, layer.programs * layer.tokens)
        own = [token % layer.held for begin in begins for token in range(begin, min(begin + layer.tokens, tokens))]
        held = layer.cache[own]
        shares.append(torch.softmax(layer.query @ held.T, -1) @ held)
    return shares


def test_attention_is_that_of_every_head_group_over_each_programs_tokens(layer: Layer) -> None:
    tokens = layer.held + 30
    layer.attend(tokens, 0, GROUPS)
    for found, expected in zip(layer.attended, attend(layer, tokens), strict=True):
        assert torch.allclose(found, expected, atol=1e-4)


def test_a_prompt_is_computed_by_a_kernel_of_its_own(layer: Layer) -> None:
    layer.attend(0, 12, GROUPS)
    for found, expected in zip(layer.attended, attend(layer, 78), strict=True):
        assert torch.allclose(found, expected, atol=1e-4)


def test_experts_multiply_an_equal_part_of_the_rows_each(layer: Layer) -> None:
    layer.made.zero_()
    layer.compute_experts(40.0, 1)
    parts = [layer.rows[20 * expert : 20 * (expert + 1)] @ layer.weights[expert] for expert in range(EXPERTS)]
    assert torch.allclose(layer.made[:40], torch.cat(parts), atol=1e-4)
    assert not layer.made[40:].any()


def test_the_router_scores_all_rows_and_the_sampler_takes_the_best(layer: Layer) -> None:
    layer.route(40, 1)
    assert torch.allclose(layer.scores[:40], layer.rows[:40] @ layer.gate[0], atol=1e-4)
    layer.sample(10)
    assert torch.equal(layer.chosen[:10], layer.scores[:10].argmax(1).to(torch.int32))
    assert not layer.chosen[10:].any()


def meet(kernel: Any, arrived: int, out: Any, parts: Any) -> tuple[int, list[int]]:
    counter, lost = torch.full((1,), arrived, dtype=torch.int32), torch.zeros(4, dtype=torch.int32)
    stamps = torch.zeros(3, dtype=torch.int64)
    kernel[(1,)](counter, lost, stamps, parts, out, 2, 4, 4, 5, 50, 2, STAMPED=False, BLOCK=32)
    return int(counter[0]), lost.tolist()


def test_a_gather_ends_once_all_have_come_and_copies_what_each_has() -> None:
    parts, out = torch.randn(4, 50), torch.zeros(4, 50)
    assert meet(kernels.all_gather_spin_kernel, 3, out, parts) == (4, [0, 0, 0, 0])
    assert torch.equal(out, parts)


def test_a_scatter_adds_up_what_each_has() -> None:
    parts, out = torch.randn(4, 50), torch.zeros(50)
    assert meet(kernels.reduce_scatter_spin_kernel, 3, out, parts) == (4, [0, 0, 0, 0])
    assert torch.allclose(out, parts.sum(0), atol=1e-5)


def test_a_rank_whose_peers_do_not_come_gives_up_and_says_so() -> None:
    parts, out = torch.randn(4, 50), torch.zeros(4, 50)
    assert meet(kernels.all_gather_spin_kernel, 0, out, parts) == (1, [0, 0, 1, 0])
