import time
from pathlib import Path

import pytest

from dprankdiag.catalog.kernels import (
    COMMUNICATION_FAMILIES,
    FAMILIES,
    family_code,
    is_communication,
    load_kernels,
)
from dprankdiag.errors import InputError
from tests.catalog.known import KNOWN, read_tsv

PAYLOADS = Path(__file__).parents[1] / "payloads" / "kernel-names"

THEIR_COMMUNICATION = {
    "collective", "dispatch", "combine", "coll.custom", "coll.fused", "coll.nccl", "coll.nccl_symm",
    "ep.dispatch", "ep.combine", "ep.setup",
}  # fmt: skip

LOCAL_IN_SPITE_OF_THE_NAME = {
    "get_dispatch_layout": "counts tokens per rank on the own GPU",
    "mega_moe_pre_dispatch_kernel": "quantises and lays out the input of the fused kernel that follows",
    "computeSendRecvIndicesKernel": "index arithmetic before the exchange",
    "computeSendRecvRankCountKernel": "index arithmetic before the exchange",
    "inplaceSendRecvRankCumSumKernel": "index arithmetic before the exchange",
    "sanitize_expert_ids": "overwrites ids of padding rows after the exchange",
    "lamport_initialize_kernel": "fills the own buffer once",
}
MEETINGS_THEIR_RULES_MISSED = {
    "pp_recv_impl": "receives from the previous pipeline stage",
    "pp_send_impl": "sends to the next pipeline stage",
    "engram_fetch_impl": "fetches from peers over NVLink or RDMA",
    "engram_fetch_wait_impl": "waits for that fetch",
    "ce_publish_flag_kernel": "flag of a copy-engine collective",
    "ce_wait_flag_kernel": "flag of a copy-engine collective",
    "copy_engine_pair_barrier_kernel": "barrier of a copy-engine collective",
    "copy_engine_retire_kernel": "end of a copy-engine collective",
    "flat_cyclic_kernel": "variant of flat_push_kernel, an all-reduce over PCIe",
    "flat_one_pack_kernel": "variant of flat_push_kernel, an all-reduce over PCIe",
}


PUBLISHED = [
    *((row[0], row[1]) for row in read_tsv(PAYLOADS / "sglang-0.5.23" / "names.tsv")),
    *((row[0], row[2]) for row in read_tsv(PAYLOADS / "vllm-0.33.0" / "names.tsv")),
]


def _classify(name: str, short: str | None = None) -> tuple[str, str]:
    code, operation = load_kernels().classify(name, name if short is None else short)
    return FAMILIES[code], operation


def test_the_table_of_known_names_is_large_and_covers_every_family() -> None:
    assert len(KNOWN) >= 150
    assert {family for family, _, _ in KNOWN} == set(FAMILIES)


@pytest.mark.parametrize("family, operation, name", KNOWN, ids=[name[:60] for _, _, name in KNOWN])
def test_a_known_name_has_its_family_and_operation(family: str, operation: str, name: str) -> None:
    assert _classify(name) == (family, operation)


def test_families_keep_the_codes_that_tables_store() -> None:
    assert [family_code(name) for name in FAMILIES] == list(range(15))
    assert FAMILIES[:4] == ("attention", "kv_write", "gemm", "moe_expert")
    assert [name for name in FAMILIES if is_communication(family_code(name))] == list(COMMUNICATION_FAMILIES)


def test_the_short_name_that_attention_and_gemm_share_does_not_decide() -> None:
    shared = {family for family, _, name in KNOWN if name.startswith("void cutlass::device_kernel<")}
    assert shared == {"attention", "moe_expert", "gemm"}
    for family, _, name in KNOWN:
        if name.startswith("void cutlass::device_kernel<"):
            assert _classify(name, "device_kernel")[0] == family
    assert _classify("device_kernel")[0] == "other"


def test_the_short_name_counts_where_the_demangled_one_says_nothing() -> None:
    assert _classify("_ZN4abcd", "flash_fwd_kernel")[0] == "attention"
    assert _classify("", "ncclDevKernel_AllGather_RING_LL") == ("collective", "all_gather")


def test_letter_case_does_not_matter() -> None:
    for _, name in PUBLISHED:
        assert _classify(name.upper())[0] == _classify(name)[0], name


def test_no_published_communication_kernel_reads_as_compute() -> None:
    wrong = {
        name
        for family, name in PUBLISHED
        if family in THEIR_COMMUNICATION
        and _classify(name)[0] not in COMMUNICATION_FAMILIES
        and not any(local in name for local in LOCAL_IN_SPITE_OF_THE_NAME)
        and not name.startswith("deep_gemm::")
    }
    assert wrong == set()


def test_no_published_compute_kernel_reads_as_communication() -> None:
    wrong = {
        name
        for family, name in PUBLISHED
        if family not in THEIR_COMMUNICATION
        and _classify(name)[0] in COMMUNICATION_FAMILIES
        and name.removeprefix("deep_ep::elastic::") not in MEETINGS_THEIR_RULES_MISSED
    }
    assert wrong == set()


def test_the_exceptions_are_still_exceptions() -> None:
    names = [name for _, name in PUBLISHED]
    for part in LOCAL_IN_SPITE_OF_THE_NAME:
        found = [name for name in names if part in name]
        assert found, part
        assert all(_classify(name)[0] not in COMMUNICATION_FAMILIES for name in found), part


def test_only_communication_kernels_have_an_operation() -> None:
    for _, name in PUBLISHED:
        family, operation = _classify(name)
        assert bool(operation) == (family in COMMUNICATION_FAMILIES), name


def test_the_algorithm_in_a_nccl_name_is_never_read() -> None:
    tails = ("RING_LL", "TREE_SIMPLE", "NVLS", "COLLNET_DIRECT", "PAT")
    found = {_classify(f"ncclDevKernel_AllReduce_Sum_bf16_{tail}(ncclDevComm*)") for tail in tails}
    assert found == {("collective", "all_reduce")}


def test_every_rule_and_alternative_names_its_source_and_can_be_skipped_cheaply() -> None:
    rules = load_kernels().rules
    assert [rule.values for rule in rules if not rule.source] == []
    slow = [one.text for rule in rules for one in rule.alternatives if not one.needs]
    assert len(slow) <= 12, slow


def test_user_patterns_win_over_ours(tmp_path: Path) -> None:
    extra = tmp_path / "extra.toml"
    extra.write_text(
        '[[rule]]\npattern = "^acme_"\nfamily = "moe_expert"\n\n'
        '[[rule]]\npattern = ["nvjet", "acme"]\nfamily = "collective"\noperation = "all_gather"\nsource = "ours"\n',
        "utf-8",
    )
    catalog = load_kernels(extra)
    assert catalog.classify("acme_gemm", "acme_gemm") == (family_code("moe_expert"), "")
    assert catalog.classify("nvjet_tst_1x1", "nvjet_tst_1x1") == (family_code("collective"), "all_gather")
    assert catalog.classify("flash_fwd_kernel", "flash_fwd_kernel")[0] == family_code("attention")
    assert load_kernels().classify("nvjet_tst_1x1", "nvjet_tst_1x1")[0] == family_code("gemm")


@pytest.mark.parametrize(
    "text, expected",
    [
        ("[[rule]\n", "is no valid TOML"),
        ("", "expected [[rule]] tables"),
        ('rule = "nvjet"\n', "expected [[rule]] tables"),
        ("[[rule]]\npattern = 'x'\n", "rule 1 (line 1): 'family' is None"),
        ("[[rule]]\npattern = 'x'\nfamily = 'gem'\n", "rule 1 (line 1): 'family' is 'gem', expected one of attention"),
        (
            "\n[[rule]]\npattern = 'x'\nfamily = 'gemm'\n[[rule]]\nfamily = 'gemm'\n",
            "rule 2 (line 5): 'pattern' must be",
        ),
        ("[[rule]]\npattern = '('\nfamily = 'gemm'\n", "rule 1 (line 1): 'pattern' '(' is no regular expression"),
        ("[[rule]]\npattern = 'x'\nfamily = 'gemm'\noperation = 'all_gather'\n", "only with family 'collective'"),
        ("[[rule]]\npattern = 'x'\nfamily = 'collective'\noperation = 'gather'\n", "'operation' is 'gather'"),
        ("[[rule]]\npattern = 'x'\nfamily = 'gemm'\nregex = 'y'\n", "unknown key 'regex'"),
        ("[[rule]]\npattern = 3\nfamily = 'gemm'\n", "'pattern' must be a regular expression"),
        ("[[rule]]\npattern = ''\nfamily = 'gemm'\n", "'pattern' must be a regular expression"),
        ("[[rule]]\npattern = 'x'\nfamily = 3\n", "'family' must be a text"),
    ],
)
def test_a_broken_file_of_patterns_is_named_in_one_line(tmp_path: Path, text: str, expected: str) -> None:
    extra = tmp_path / "extra.toml"
    extra.write_text(text, "utf-8")
    with pytest.raises(InputError) as caught:
        load_kernels(extra)
    assert expected in str(caught.value)
    assert str(extra) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_of_patterns_that_cannot_be_read_is_named_in_one_line(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(InputError, match="cannot be read"):
            load_kernels(path)
    binary = tmp_path / "binary.toml"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="expected UTF-8 text"):
        load_kernels(binary)


def test_a_name_seen_before_is_looked_up_not_searched() -> None:
    names = [f"void vendor_{number}::unheard_of_kernel<float, {number}>(float*)" for number in range(2000)]
    catalog = load_kernels()
    first = _time_classification(catalog.classify, names)
    again = _time_classification(catalog.classify, names)
    assert again < first / 5


def _time_classification(classify: object, names: list[str]) -> float:
    assert callable(classify)
    start = time.perf_counter()
    for name in names:
        classify(name, name)
    return time.perf_counter() - start
