from dprankdiag.catalog.evidence import UNITS, load_evidence

EXPECTED = """
attention_work_ratio attention_excess_ns post_gather_ratio probe_slowness_ratio probe_kernels idle_before_launch_ns
launch_late_ns expert_work_ratio expert_layers exit_lateness_ns exit_lateness_operations wait_ns_per_step
peers_wait_ns_per_step least_wait_share transfer_ratio transfer_ns excess_ns_per_step stall_ns stalls busy_ratio
share_last onset_error_ratio step_spread_ratio z_score clock_bound_ns replay_error_ratio range_ratio received_ratio
"""


def test_every_name_that_findings_use_is_defined() -> None:
    assert set(EXPECTED.split()) <= set(load_evidence())


def test_a_definition_is_one_sentence() -> None:
    for kind in load_evidence().values():
        assert kind.definition[0].isupper()
        assert kind.definition.endswith(".")
        assert ". " not in kind.definition


def test_a_unit_agrees_with_the_name_it_ends() -> None:
    for kind in load_evidence().values():
        assert kind.unit in UNITS
        if kind.name.endswith("_ns") or "_ns_per_" in kind.name:
            assert kind.unit == "ns"
        if kind.name.endswith(("_ratio", "_share")):
            assert kind.unit == "ratio"
