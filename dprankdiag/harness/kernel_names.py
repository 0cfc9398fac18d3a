"""What kernels are called: two engines' names as their traces show them, and a set that nobody has seen before.

Source: kernel names of SGLang 0.5.23 with its pinned sglang-kernel, flashinfer and FlashMLA, and of vLLM 0.33.0, as
printed by profilers; NCCL names as in NCCL 2.19 and later.
"""

from __future__ import annotations

from dataclasses import dataclass

from dprankdiag.harness.events import KernelText


@dataclass(frozen=True, slots=True)
class NameSet:
    """Kernel texts by operation key, and how an engine starts and names its processes.

    Attributes:
        title: a rank's process title; `tp_part` is there only where ranks share attention.
        own_devices: each attention group sees its own GPUs only, so that ordinals start anew in it.
    """

    kernels: dict[str, KernelText]
    sync_call: str
    title: str
    command: tuple[str, ...]
    own_devices: bool

    def kernel(self, key: str) -> KernelText:
        """Look up the texts of an operation."""
        return self.kernels[key]


def _same(text: str) -> KernelText:
    return KernelText(text, text)


def _function(text: str) -> KernelText:
    """Shorten a C++ signature the way profilers do: the bare function name."""
    head = text.removeprefix("void ").replace("<unnamed>", "unnamed")
    cut = min(position for position in (head.find("<"), head.find("("), len(head)) if position >= 0)
    return KernelText(text, head[:cut].rsplit("::", 1)[-1])


def _custom_reduces(text: str) -> dict[str, KernelText]:
    return {f"custom_reduce_{size}": _function(text.format(size)) for size in CUSTOM_REDUCE_SIZES}


CUSTOM_REDUCE_SIZES = (2, 4, 6, 8)
"""Group sizes that the engines' own all-reduce is compiled for."""

_ARGS = "(ncclDevKernelArgsStorage<(unsigned long)4096>)"
_NVJET = "nvjet_tst_{}_{}_v_bz_{}"
_DEEP_GEMM = (
    "void deep_gemm::sm90_fp8_gemm_1d2d_impl<(cute::UMMA::Major)0, (unsigned int)0, (unsigned int){n}, "
    "(unsigned int){k}, (unsigned int)1, (unsigned int)128, (unsigned int)128, (unsigned int)128, (unsigned int)132, "
    "(deep_gemm::GemmType){kind}, cutlass::bfloat16_t>(float *, int *, unsigned int, unsigned int, unsigned int)"
)

_COMMON = {
    "all_gather": _function("ncclDevKernel_AllGather_RING_LL" + _ARGS),
    "reduce_scatter": _function("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL" + _ARGS),
    "attention_all_reduce": _function("ncclDevKernel_AllReduce_Sum_bf16_RING_LL" + _ARGS),
    "qkv_gemm": _same(_NVJET.format("64x64", "64x16_1x1", "TNT")),
    "q_up_gemm": _same(_NVJET.format("64x128", "64x10_1x2", "h_bz_TNT")),
    "o_proj_gemm": _same(_NVJET.format("128x64", "64x12_2x1", "coopB_TNT")),
    "shared_gemm": _same(_NVJET.format("128x128", "64x6_2x1", "coopA_TNT")),
    "lm_head_gemm": _same(_NVJET.format("192x192", "64x4_2x1", "coopB_TNT")),
    "notify_dispatch": _function(
        "void deep_ep::intranode::notify_dispatch<(int)8>(const int *, int *, const int *, int *, int, int)"
    ),
    "dispatch_layout": _function(
        "void deep_ep::layout::get_dispatch_layout<(int)256, (int)4, (int)2>(const long *, int *, int *, int *, bool *)"
    ),
    "dispatch_normal": _function(
        "void deep_ep::intranode::dispatch<(int)8, (int)768, (int)8192>(int4 *, float *, int *, long *, float *)"
    ),
    "combine_normal": _function(
        "void deep_ep::intranode::combine<__nv_bfloat16, (int)8, (int)768, (int)4096>(__nv_bfloat16 *, float *)"
    ),
    "dispatch": _function(
        "void deep_ep::internode_ll::dispatch<(bool)1, (bool)0, (int)7168>(void *, void *, int *, long *, int *)"
    ),
    "combine": _function(
        "void deep_ep::internode_ll::combine<(bool)0, (int)7168, (int)11, (int)4>(void *, void *, int *, void *)"
    ),
}

_FLASH_3 = KernelText(
    "void cutlass::device_kernel<flash::enable_sm90_or_later<flash::FlashAttnFwdSm90<flash::CollectiveMainloopFwdSm90<"
    "(int)2, cute::tuple<cute::C<(int)1>, cute::C<(int)1>, cute::C<(int)1>>, cute::tuple<cute::C<(int)128>, "
    "cute::C<(int)128>, cute::C<(int)128>>, (int)128, cutlass::bfloat16_t, float, cutlass::arch::Sm90>>>>(T1::Params)",
    "device_kernel",
)

SGLANG = NameSet(
    kernels=_COMMON
    | _custom_reduces(
        "void flashinfer::cross_device_reduce_1stage<__nv_bfloat16, (int){}>(RankData *, RankSignals, Signal *, int)"
    )
    | {
        "embedding": _function(
            "void at::native::<unnamed>::vectorized_gather_kernel<(int)16, long>(char *, char *, long *, int, long)"
        ),
        "input_norm": _function(
            "void flashinfer::norm::FusedAddRMSNormKernel<(unsigned int)8, __nv_bfloat16>"
            "(T2 *, T2 *, T2 *, unsigned int, unsigned int, unsigned int, float, float)"
        ),
        "kv_write": _function("void set_mla_kv_buffer_kernel<__nv_bfloat16, (int)512, (int)64>(T1 *, const T1 *)"),
        "attention": _function(
            "void sm90::decode::dense::flash_fwd_splitkv_mla_kernel<sm90::decode::dense::Traits<cutlass::bfloat16_t, "
            "(int)512>>(DenseAttnDecodeParams, T2)"
        ),
        "attention_merge": _function(
            "void smxx::decode::flash_fwd_mla_combine_kernel<cutlass::bfloat16_t, (int)512, (int)8, (int)32, (int)256>"
            "(CombineParams)"
        ),
        "attention_prefill": _FLASH_3,
        "post_norm": _function(
            "void flashinfer::norm::RMSNormKernel<(unsigned int)8, __nv_bfloat16>"
            "(T2 *, T2 *, T2 *, unsigned int, unsigned int, unsigned int, float, float)"
        ),
        "router": _function(
            "void topkGatingSoftmax<float, (int)8, (int)256, (int)4, (int)16, int>(const T1 *, float *, int)"
        ),
        "align": _function("void moe_align_block_size_kernel<int>(const T1 *, int *, int *, int *, int, int, int)"),
        "expert_up": _function(_DEEP_GEMM.format(n=4096, k=7168, kind=2)),
        "expert_sum": _function("void moe_sum_reduce_warp_per_token_vec_kernel<(int)8>(const T1 *, T1 *, long, float)"),
        "activation": _function(
            "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>(T1 *, const T1 *, int)"
        ),
        "expert_down": _function(_DEEP_GEMM.format(n=7168, k=2048, kind=2)),
        "final_norm": _function(
            "void flashinfer::norm::FusedAddRMSNormKernel<(unsigned int)8, __nv_bfloat16>"
            "(T2 *, T2 *, T2 *, unsigned int, unsigned int, unsigned int, float, float)"
        ),
        "sample_softmax": _function(
            "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, "
            "at::native::<unnamed>::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
        ),
        "sample_pick": _function(
            "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<(unsigned int)1024, float, int>(T2 *, T3 *)"
        ),
    },
    sync_call="cudaStreamSynchronize_v3020",
    title="sglang::scheduler_DP{dp}_TP{rank}_EP{rank}",
    command=(
        "python3",
        "-m",
        "sglang.launch_server",
        "--tp-size",
        "{ranks}",
        "--dp-size",
        "{dp}",
        "--enable-dp-attention",
    ),
    own_devices=False,
)

VLLM = NameSet(
    kernels=_COMMON
    | _custom_reduces(
        "void vllm::cross_device_reduce_1stage<__nv_bfloat16, (int){}>"
        "(vllm::RankData *, vllm::RankSignals, vllm::Signal *, T1 *, int, int)"
    )
    | {
        "embedding": _same("triton_poi_fused_embedding_0"),
        "input_norm": _function(
            "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, long, T1 *, const T1 *, float, int, int)"
        ),
        "kv_write": _same("reshape_and_cache_kernel_flash"),
        "attention": _FLASH_3,
        "attention_merge": KernelText(
            "void cutlass::device_kernel<flash::FlashAttnFwdCombine<cute::tuple<cute::C<(int)8>, cute::C<(int)128>>, "
            "(int)8, (int)256, (int)1, (bool)0, (bool)0, cutlass::bfloat16_t, float, cutlass::arch::Sm90>>(T1::Params)",
            "device_kernel",
        ),
        "attention_prefill": _FLASH_3,
        "post_norm": _function(
            "void vllm::rms_norm_kernel<c10::BFloat16, (int)8, (int)2>(T1 *, const T1 *, long, const T1 *, float, int)"
        ),
        "router": _function(
            "void vllm::moe::grouped_topk_fused_small_expert_count_kernel<float, c10::BFloat16, int, "
            "(vllm::moe::ScoringFunc)1, (int)256, (bool)1, (int)8>(T1 *, float *, T3 *, const T2 *, long, long)"
        ),
        "align": _function("void vllm::moe::moe_align_block_size_kernel<int>(const T1 *, int *, int *, int *, int *)"),
        "expert_up": _same("fused_moe_kernel"),
        "expert_sum": _function("void vllm::moe::moe_sum_kernel<c10::BFloat16, (int)8>(T1 *, const T1 *, int)"),
        "activation": _function(
            "void vllm::act_and_mul_kernel<c10::BFloat16, __nv_bfloat162, &vllm::silu_kernel>(T1 *, const T1 *)"
        ),
        "expert_down": _same("fused_moe_kernel"),
        "final_norm": _function(
            "void vllm::fused_add_rms_norm_kernel<c10::BFloat16, (int)8>(T1 *, long, T1 *, const T1 *, float, int, int)"
        ),
        "sample_softmax": _function(
            "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, "
            "at::native::<unnamed>::SoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
        ),
        "sample_pick": _same("_topk_topp_kernel"),
    },
    sync_call="cudaEventSynchronize_v3020",
    title="VLLM::Worker_DP{dp}{tp_part}_EP{rank}",
    command=("vllm", "serve", "model", "-tp", "{tp}", "--data-parallel-size", "{dp}", "--enable-expert-parallel"),
    own_devices=True,
)

_INVENTED = {
    "embedding": "lookup_rows_v4",
    "input_norm": "zz::residual_scale_k",
    "qkv_gemm": "zz::tile_mm_96x48",
    "kv_write": "zz::page_store",
    "attention": "zz::ctx_mix_k2",
    "attention_merge": "zz::ctx_fold",
    "attention_prefill": "zz::ctx_mix_long",
    "q_up_gemm": "zz::tile_mm_64x80",
    "o_proj_gemm": "zz::tile_mm_48x96",
    "shared_gemm": "zz::tile_mm_112x96",
    "expert_sum": "zz::fold_paths",
    "attention_all_reduce": "zz::pair_sum",
    "all_gather": "zz::exchange_rows",
    "reduce_scatter": "zz::exchange_back",
    **{f"custom_reduce_{size}": "zz::mesh_sum" for size in CUSTOM_REDUCE_SIZES},
    "dispatch": "zz::send_rows",
    "combine": "zz::fetch_rows",
    "notify_dispatch": "zz::count_rows",
    "dispatch_layout": "zz::plan_rows",
    "dispatch_normal": "zz::send_rows_bulk",
    "combine_normal": "zz::fetch_rows_bulk",
    "post_norm": "zz::scale_k",
    "router": "zz::pick_paths",
    "align": "zz::sort_paths",
    "expert_up": "zz::many_mm_up",
    "activation": "zz::gate_k",
    "expert_down": "zz::many_mm_down",
    "final_norm": "zz::residual_scale_k",
    "lm_head_gemm": "zz::tile_mm_192x192",
    "sample_softmax": "zz::prob_k",
    "sample_pick": "zz::draw_k",
}

INVENTED = NameSet(
    kernels={
        key: _function(f"void {text}<float>(T1 *, int)") if "::" in text else _same(text)
        for key, text in _INVENTED.items()
    },
    sync_call="cudaStreamSynchronize_v3020",
    title="worker-{rank}",
    command=("./server", "--workers", "{ranks}"),
    own_devices=False,
)

NAME_SETS = {"sglang": SGLANG, "vllm": VLLM, "invented": INVENTED}
