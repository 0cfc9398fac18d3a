"""Small worlds of the roofline physics by name, each with one thing to find or nothing.

The healthy ones differ in model, chip, communication and batches, and invite false alarms: mixed steps, captured sizes
that change, few requests of unequal length, sends that take long.
"""

from __future__ import annotations

from dataclasses import replace

from dprankdiag.harness.faults import (
    burst,
    fabric,
    host_burst,
    host_late,
    hot_expert,
    load_context,
    load_idle,
    load_prefill,
    load_requests,
    onset,
    periodic,
    receiver_queue,
    slow_gpu,
    slow_link,
    structural_graph,
    structural_layout,
    uniform,
    window,
)
from dprankdiag.harness.world import World

_USUAL = World(physics="roofline", requests=32, context_tokens=6_000)

ROOFLINE_WORLDS: dict[str, World] = {
    "roofline_healthy": replace(_USUAL, seed=101, model="deepseek-v3", chip="h200"),
    "roofline_healthy_vllm": replace(_USUAL, seed=102, model="qwen3-235b", chip="h100", names="vllm"),
    "roofline_healthy_deepep": replace(
        _USUAL,
        seed=103,
        model="kimi-k2",
        chip="b200",
        communication="deepep",
        ranks=16,
        steps=30,
        layers=5,
        requests=48,
    ),
    "roofline_healthy_attention_tp": replace(_USUAL, seed=104, model="glm-4.5", chip="h20", attention_tp=2),
    "roofline_healthy_eager": replace(
        _USUAL, seed=105, model="gpt-oss-120b", chip="h100", graph=False, names="vllm", overlap=True
    ),
    "roofline_healthy_mixed": replace(_USUAL, seed=106, model="deepseek-v3", chip="h20", prefill_every=6),
    "roofline_healthy_verify": replace(
        _USUAL,
        seed=107,
        model="kimi-k2",
        chip="h200",
        verify_tokens=3,
        requests=16,
        communication="deepep",
        receive_hook=True,
    ),
    "roofline_healthy_heavy_routing": replace(
        _USUAL, seed=108, model="qwen3-235b", chip="b200", routing_gini=0.6, routing_spread=0.2
    ),
    "roofline_healthy_custom_all_reduce": replace(
        _USUAL,
        seed=109,
        model="qwen3-30b",
        chip="h100",
        communication="custom_all_reduce",
        names="vllm",
        requests=64,
        context_tokens=3_000,
    ),
    "roofline_healthy_normal_dispatch": replace(
        _USUAL, seed=110, model="deepseek-v3", chip="h100", communication="deepep_normal", graph=False, prefill_every=8
    ),
    "roofline_healthy_noisy": replace(
        _USUAL, seed=111, noise=0.05, tail_share=0.003, chip_spread=0.015, names="vllm", dependent_launch=True
    ),
    "roofline_healthy_few_requests": replace(
        _USUAL, seed=112, model="deepseek-v3", chip="h200", requests=8, context_tokens=16_000, length_spread=0.9
    ),
    "roofline_healthy_wide": replace(
        _USUAL,
        seed=113,
        model="deepseek-v3",
        chip="h200",
        ranks=32,
        steps=24,
        layers=4,
        files="node",
        ranks_per_node=8,
        host_clock_ns=1_000_000,
        drift_ppm=10.0,
        communication="deepep",
    ),
    "roofline_healthy_levels": replace(
        _USUAL, seed=114, model="glm-4.5", chip="h200", steps=60, layers=5, load_levels=(1.0, 2.5, 1.5)
    ),
    "roofline_healthy_receive_hook": replace(
        _USUAL,
        seed=161,
        model="kimi-k2",
        chip="h200",
        communication="deepep",
        receive_hook=True,
        prefill_every=7,
        steps=60,
        layers=5,
    ),
    "roofline_healthy_graph_sizes": replace(
        _USUAL,
        seed=1_188_180_155,
        model="qwen3-235b",
        chip="h20",
        attention_tp=4,
        comm_stream=True,
        requests=64,
        context_tokens=4_000,
        length_spread=0.36,
        steps=80,
        layers=6,
    ),
    "roofline_slow_gpu": replace(_USUAL, seed=121, model="deepseek-v3", chip="h200", faults=(slow_gpu(2, 1.2),)),
    "roofline_memory_gpu": replace(
        _USUAL, seed=122, model="qwen3-235b", chip="h100", names="vllm", faults=(slow_gpu(5, 1.25, memory_only=True),)
    ),
    "roofline_load_context": replace(
        _USUAL, seed=123, model="deepseek-v3", chip="h200", faults=(load_context(3, 2.5),)
    ),
    "roofline_load_requests": replace(
        _USUAL, seed=124, model="glm-4.5", chip="h200", graph=False, faults=(load_requests(6, 1.75),)
    ),
    "roofline_load_requests_graph": replace(
        _USUAL, seed=125, model="qwen3-30b", chip="h100", faults=(load_requests(1, 2.0),)
    ),
    "roofline_load_onset": replace(
        _USUAL,
        seed=126,
        model="qwen3-235b",
        chip="h200",
        steps=80,
        layers=5,
        names="vllm",
        faults=(load_context(1, 2.5, when=onset(40)),),
    ),
    "roofline_load_prefill": replace(
        _USUAL,
        seed=127,
        model="deepseek-v3",
        chip="h200",
        steps=60,
        layers=5,
        faults=(load_prefill(4, 1.25, when=periodic(5, 2)),),
    ),
    "roofline_load_prefill_vllm": replace(
        _USUAL,
        seed=128,
        model="qwen3-235b",
        chip="h100",
        names="vllm",
        steps=60,
        layers=5,
        faults=(load_prefill(0, 1.25, when=burst(0.3)),),
    ),
    "roofline_load_prefill_turns": replace(
        _USUAL,
        seed=129,
        model="qwen3-30b",
        chip="h200",
        steps=60,
        layers=5,
        faults=(load_prefill(tuple(range(8)), 1.25, when=periodic(3), rotating=True),),
    ),
    "roofline_load_idle": replace(_USUAL, seed=130, model="deepseek-v3", chip="h200", faults=(load_idle((1, 5), 1.5),)),
    "roofline_load_idle_eager": replace(
        _USUAL, seed=131, model="glm-4.5", chip="h200", graph=False, faults=(load_idle(2, 2.0),)
    ),
    "roofline_load_idle_half": replace(
        _USUAL,
        seed=132,
        model="qwen3-235b",
        chip="h100",
        names="vllm",
        faults=(load_idle((0, 3, 6), 1.5, when=burst(0.7)),),
    ),
    "roofline_load_idle_few": replace(
        _USUAL, seed=150, model="glm-4.5", chip="h200", faults=(load_idle((0, 1, 2, 3, 4, 5), 1.5),)
    ),
    "roofline_layout_before": replace(
        _USUAL,
        seed=133,
        model="glm-4.5",
        chip="h200",
        steps=60,
        layers=5,
        load_levels=(1.0, 2.5),
        faults=(structural_layout(5, 1.6),),
    ),
    "roofline_layout_after": replace(
        _USUAL,
        seed=134,
        model="deepseek-v3",
        chip="h100",
        steps=60,
        layers=5,
        load_levels=(1.0, 2.5, 1.0),
        faults=(structural_layout(2, 1.4, side="after"),),
    ),
    "roofline_lost_graphs": replace(
        _USUAL,
        seed=135,
        model="qwen3-30b",
        chip="h200",
        steps=60,
        requests=16,
        context_tokens=3_000,
        faults=(structural_graph(4, when=burst(0.3)),),
    ),
    "roofline_host_late": replace(_USUAL, seed=136, model="deepseek-v3", chip="h200", faults=(host_late(4, 600_000),)),
    "roofline_host_burst": replace(
        _USUAL, seed=137, model="kimi-k2", chip="b200", steps=60, faults=(host_burst(5, stalls=5, stall_ns=4_000_000),)
    ),
    "roofline_host_node": replace(
        _USUAL,
        seed=138,
        model="deepseek-v3",
        chip="h200",
        ranks=16,
        steps=30,
        layers=5,
        files="node",
        ranks_per_node=8,
        host_clock_ns=1_000_000,
        drift_ppm=10.0,
        faults=(host_late(tuple(range(8, 16)), 500_000),),
    ),
    "roofline_hot_expert": replace(
        _USUAL,
        seed=139,
        model="deepseek-v3",
        chip="h20",
        requests=96,
        context_tokens=2_000,
        faults=(hot_expert({0: 3, 1: 6, 2: 0, 3: 5, 4: 3, 5: 7, 6: 1, 7: 6}, 3.0),),
    ),
    "roofline_receiver_queue": replace(
        _USUAL, seed=140, model="deepseek-v3", chip="h200", communication="deepep", faults=(receiver_queue(6, 60_000),)
    ),
    "roofline_receiver_queue_attention_tp": replace(
        _USUAL,
        seed=149,
        model="glm-4.5",
        chip="h200",
        communication="deepep",
        attention_tp=2,
        faults=(receiver_queue(6, 60_000),),
    ),
    "roofline_slow_link": replace(_USUAL, seed=141, model="qwen3-235b", chip="h100", faults=(slow_link(2, 40_000),)),
    "roofline_fabric": replace(
        _USUAL,
        seed=142,
        model="deepseek-v3",
        chip="h200",
        steps=80,
        layers=5,
        requests=64,
        faults=(fabric(5.0, when=window(30, 55)),),
    ),
    "roofline_uniform": replace(
        _USUAL, seed=143, model="glm-4.5", chip="h200", steps=80, layers=5, faults=(uniform(1.3, when=onset(40)),)
    ),
    "roofline_attention_tp_load": replace(
        _USUAL, seed=144, model="glm-4.5", chip="h200", attention_tp=2, faults=(load_context(4, 2.5),)
    ),
    "roofline_normal_load": replace(
        _USUAL,
        seed=145,
        model="deepseek-v3",
        chip="h100",
        communication="deepep_normal",
        graph=False,
        faults=(load_context(2, 3.0),),
    ),
    "roofline_verify_slow": replace(
        _USUAL, seed=146, model="kimi-k2", chip="h20", verify_tokens=3, faults=(slow_gpu(7, 1.2),)
    ),
    "roofline_gpu_eager": replace(
        _USUAL,
        seed=147,
        model="gpt-oss-120b",
        chip="h200",
        graph=False,
        dependent_launch=True,
        faults=(slow_gpu(4, 1.3),),
    ),
    "roofline_load_padded": replace(
        _USUAL,
        seed=148,
        model="deepseek-v3",
        chip="h20",
        graph=False,
        max_padding=True,
        faults=(load_requests(2, 2.0),),
    ),
}
