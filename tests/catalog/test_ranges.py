import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.catalog.kernels import FAMILIES
from dprankdiag.catalog.operations import OPERATIONS
from dprankdiag.catalog.ranges import ROLES, load_ranges, template


@pytest.mark.parametrize(
    "name, expected",
    [
        ("run_batch step=7", "run_batch step=#"),
        ("step[EXTEND bs=2 toks=8192]", "step[EXTEND bs=# toks=#]"),
        ("aten::copy_, seq = 3, op_id = 991065", "aten::copy_"),
        ("aten::mm, op_id = 5, sizes = [[1, 2], [2, 3]]", "aten::mm"),
        (
            "{'Module': 'model.layers.17.self_attn', 'TrainableParams': {}, 'Inputs': [[4, 7]]}",
            "model.layers.#.self_attn",
        ),
        (" decode ", "decode"),
        ("", ""),
    ],
)
def test_a_template_keeps_what_repeats(name: str, expected: str) -> None:
    assert template(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "decode_step",
        "step 12",
        "step_12",
        "iteration",
        "iteration 5",
        "forward_step",
        "training_step",
        "decode_step 14 bs=32",
        "run_batch step=7",
        "scheduler.run_batch",
        "ProfilerStep#5",
        "step[DECODE bs=32]",
        "step[IDLE bs=0]",
        "step[DECODE bs=32 g_sq=32 g_sqsk=9000 forward_id=3]",
        "execute_context_2(512)_generation_5(5)",
        "execute_32_context_0(sq0sk0sqsq0sqsk0)_generation_32(sq32sk32785sqsq32sqsk32785)",
        "execute_new_1_cached_4",
    ],
)
def test_a_forward_pass_is_a_step(name: str) -> None:
    assert load_ranges().classify(name).role == "step"


@pytest.mark.parametrize(
    "name",
    [
        "stepper",
        "misstep",
        "timestep_embedding",
        "step_time_report",
        "last_step_marker",
        "optimizer_step_hook",
        "iteration_marker",
        "log_iteration_time",
        "Optimizer.step#SGD.step",
        "llm_engine step: add_request",
        "prefetch",
        "my_run_batch_helper",
    ],
)
def test_a_step_word_inside_another_name_is_no_step(name: str) -> None:
    assert load_ranges().classify(name).role != "step"


@given(st.text("abcdefgh", min_size=1), st.text("abcdefgh", min_size=1))
def test_a_marker_surrounded_by_letters_is_never_a_step(before: str, after: str) -> None:
    for marker in ("decode_step", "iteration", "execute_new_1_cached_4"):
        assert load_ranges().classify(before + marker + after).role != "step"


@pytest.mark.parametrize(
    "name, operation",
    [
        ("gloo:all_gather", "all_gather"),
        ("gloo:broadcast", "broadcast"),
        ("gloo:barrier", "barrier"),
        ("all_gather", "all_gather"),
        ("all_gather_into_tensor", "all_gather"),
        ("dp_reduce_scatter", "reduce_scatter"),
        ("all2all", "all_to_all"),
        ("metadata_all_gather", "all_gather"),
        ("all_reduce layer 12", "all_reduce"),
        ("broadcast", "broadcast"),
        ("barrier", "barrier"),
        ("MPI_Allreduce", "all_reduce"),
        ("MPI_Bcast", "broadcast"),
        ("MPI_Barrier", "barrier"),
        ("moe_dispatch", "dispatch"),
        ("ep_combine", "combine"),
        ("mlp_sync", "generic"),
    ],
)
def test_a_range_that_holds_its_caller_is_a_meeting(name: str, operation: str) -> None:
    kind = load_ranges().classify(name)
    assert (kind.role, kind.operation, kind.family) == ("meeting", operation, None)


@pytest.mark.parametrize(
    "name, operation",
    [
        ("nccl:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_to_all", "all_to_all"),
        ("ncclReduceScatter", "reduce_scatter"),
        ("ncclGroupEnd", "generic"),
        ("ncclSend", "send_recv"),
        ("ncclReduce", "reduce"),
        ("nccl:reduce", "reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_allgather_base_", "all_gather"),
        ("MPI_Isend", "send_recv"),
        ("MPI_Recv", "send_recv"),
    ],
)
def test_an_interface_that_returns_at_once_is_a_call_not_a_meeting(name: str, operation: str) -> None:
    kind = load_ranges().classify(name)
    assert (kind.role, kind.operation, kind.family) == ("call", operation, None)


@pytest.mark.parametrize(
    "name, family",
    [
        ("attention", "attention"),
        ("attention_3", "attention"),
        ("layer 3 attention", "attention"),
        ("attention layer 4", "attention"),
        ("model.layers.3.self_attn", "attention"),
        ("model.layers.3.self_attn.o_proj", "gemm"),
        ("model.layers.3.mlp", "gemm"),
        ("model.layers.3.mlp.experts", "moe_expert"),
        ("model.layers.3.mlp.gate", "router"),
        ("model.layers.3.mlp.shared_experts", "gemm"),
        ("model.layers.3.input_layernorm", "norm"),
        ("{'Module': 'model.layers.11.mlp.experts', 'Inputs': [[1]]}", "moe_expert"),
        ("moe_experts", "moe_expert"),
        ("moe", "moe_expert"),
        ("mlp", "gemm"),
        ("norm", "norm"),
        ("sampler", "sampling"),
        ("gpu_model_runner: sample", "sampling"),
        ("gpu_model_runner: forward", None),
        ("forward", None),
    ],
)
def test_a_range_of_work_has_the_family_of_its_last_part(name: str, family: str | None) -> None:
    kind = load_ranges().classify(name)
    assert (kind.role, kind.family, kind.operation) == ("compute", family, "")


@pytest.mark.parametrize("name", ["host_stall", "checkpoint", "scheduler.recv_requests", "aten::linear, op_id = 7", ""])
def test_a_name_that_says_nothing_is_other(name: str) -> None:
    assert load_ranges().classify(name).role == "other"


def test_each_rule_has_a_source_and_known_values() -> None:
    for rule in load_ranges().rules:
        assert rule.source
        assert rule.values["role"] in ROLES
        assert rule.values.get("family", "gemm") in FAMILIES
        assert rule.values.get("operation", "generic") in OPERATIONS


def test_repeats_of_one_range_are_judged_once() -> None:
    catalog = load_ranges()
    assert catalog.classify("run_batch step=1") is catalog.classify("run_batch step=2")
