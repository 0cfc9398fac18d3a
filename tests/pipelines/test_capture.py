from __future__ import annotations

import shlex

import pytest

from dprankdiag.model.capture import CapturePlan
from dprankdiag.model.checkup import Checkup
from dprankdiag.model.ledgers import EngineName, Fact
from dprankdiag.pipelines.capture import CaptureOptions, plan_assumed, plan_captures
from dprankdiag.views.capture import render_text

SGLANG: dict[str, Fact] = {"tp_size": 8, "dp_size": 1, "attn_dp_size": 8, "nnodes": 1, "disaggregation_mode": "null"}


def _checkup(target: str, engine: EngineName | None = "sglang", version: str = "0.5.23", **facts: Fact) -> Checkup:
    return Checkup(target, engine, version, "m", (0,), None, (), (), (), (), {**SGLANG, **facts})


def _plan(*checkups: Checkup, options: CaptureOptions | None = None) -> tuple[CapturePlan, ...]:
    return plan_captures(checkups, options or CaptureOptions())


def _commands(plan: CapturePlan, tool: str) -> str:
    (way,) = (way for way in plan.ways if way.tool == tool)
    return "\n".join(command for step in way.steps for command in step.commands)


def test_one_call_records_all_ranks_of_sglang_over_the_same_steps() -> None:
    (plan,) = _plan(_checkup("http://a:30000"), options=CaptureOptions(steps=12))
    shown = _commands(plan, "torch")
    assert shown.count("/start_profile") == 1
    assert '"num_steps": 12' in shown
    assert '"activities": ["CPU", "GPU"]' in shown
    assert "profile_by_stage" not in shown
    assert plan.gpus == 8
    assert "dprankdiag analyze traces/ --expect-ranks 8" in shown


def test_nsight_systems_sees_the_kernels_inside_graphs() -> None:
    for plan in (*_plan(_checkup("http://a:1")), plan_assumed("vllm", ["http://a:1"], CaptureOptions())):
        shown = _commands(plan, "nsys")
        assert "--cuda-graph-trace=node" in shown
        assert "--capture-range=cudaProfilerApi" in shown
        assert "nsys export --type sqlite" in shown


def test_the_profiler_of_sglang_opens_the_range_of_nsight_systems() -> None:
    (plan,) = _plan(_checkup("http://a:1"))
    assert '"CUDA_PROFILER"' in _commands(plan, "nsys")


def test_annotations_are_asked_for_only_where_the_release_has_them() -> None:
    for version, has in (("0.5.18", False), ("0.5.19", True), ("0.5.23.post1", True), ("0.6.0", True)):
        (plan,) = _plan(_checkup("http://a:1", version=version))
        assert ("detailed_annotations" in _commands(plan, "torch")) == has


def test_a_token_stands_in_the_lines_by_name_only() -> None:
    options = CaptureOptions(header="Authorization", token="$KEY")
    (plan,) = _plan(_checkup("http://a:1"), options=options)
    assert '-H "Authorization: Bearer $KEY"' in _commands(plan, "torch")
    other = plan_assumed("vllm", ["http://a:1"], CaptureOptions(header="X-Key", token="$KEY"))
    assert '-H "X-Key: $KEY"' in _commands(other, "torch")


def test_all_ports_of_vllm_are_called_at_once() -> None:
    checkups = [_checkup(f"http://a:{port}", "vllm", "0.33.0") for port in (8000, 8001)]
    (plan,) = _plan(*checkups)
    shown = _commands(plan, "torch")
    for port in (8000, 8001):
        for call in ("start", "stop"):
            assert f"http://a:{port}/{call}_profile &" in shown
    assert shown.index("start_profile") < shown.index("sleep 2") < shown.index("stop_profile")


@pytest.mark.parametrize("version, switch", [("0.11.2", "VLLM_TORCH_PROFILER_DIR="), ("0.33.0", "--profiler-config")])
def test_vllm_is_started_with_a_profiler_in_the_words_of_its_release(version: str, switch: str) -> None:
    (plan,) = _plan(_checkup("http://a:1", "vllm", version))
    assert switch in _commands(plan, "torch")


def test_nodes_of_one_engine_are_one_and_replicas_are_several() -> None:
    head = _checkup("http://head:1", nnodes=2, tp_size=16, attn_dp_size=16)
    follower = Checkup(
        "http://next:1", "sglang", None, "m", (8,), None, (), (), (), (), {"disaggregation_mode": "null"}
    )
    (plan,) = _plan(follower, head)
    assert plan.targets[0] == "http://head:1"
    assert (plan.nodes, plan.gpus) == (2, 16)
    assert _commands(plan, "torch").count("curl") == 1
    assert "rsync" in _commands(plan, "torch")
    assert len(_plan(_checkup("http://a:1"), _checkup("http://b:1"))) == 2


def test_prefill_and_decode_are_captured_apart() -> None:
    both = _plan(
        _checkup("http://a:1", disaggregation_mode="prefill"), _checkup("http://b:1", disaggregation_mode="decode")
    )
    assert [plan.targets for plan in both] == [("http://a:1",), ("http://b:1",)]


@pytest.mark.parametrize(
    "facts, gpus",
    [
        ({"tp_size": 8, "dp_size": 1, "attn_dp_size": 8}, 8),
        ({"tp_size": 4, "dp_size": 2, "attn_dp_size": 1, "pp_size": 2}, 16),
        ({"tp_size": 8, "dp_size": 8, "enable_dp_attention": True}, 8),
        ({"tp_size": 2, "dp_size": 4, "enable_dp_attention": False}, 8),
    ],
)
def test_gpus_are_counted_in_old_words_and_new(facts: dict[str, Fact], gpus: int) -> None:
    checkup = Checkup("http://a:1", "sglang", "0.5.23", "m", (0,), None, (), (), (), (), facts)
    (plan,) = _plan(checkup)
    assert plan.gpus == gpus


def test_what_answered_nothing_is_left_out() -> None:
    assert _plan(_checkup("http://a:1", None)) == ()


def test_the_page_is_a_script_whose_lines_a_shell_can_read() -> None:
    plans = (*_plan(_checkup("http://a:1/x y")), plan_assumed("vllm", ["http://b:1"], CaptureOptions(folder="/a b")))
    for line in render_text(plans).splitlines():
        if line and not line.startswith("#"):
            assert shlex.split(line)
    assert "'http://a:1/x y/start_profile'" in render_text(plans)
