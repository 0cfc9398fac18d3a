"""Log lines of every release are read key by key; what is torn, strange or of other loggers is passed over."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerAnswer
from dprankdiag.readers.engine_log import MOST_MOMENTS, is_log, parse_log

DECODES = {
    "0.4.0": "Decode batch. #running-req: 24, #token: 60000, token usage: 0.14, gen throughput (token/s): 812.5, "
    "#queue-req: 3",
    "0.4.6": "Decode batch. #running-req: 24, #token: 60000, token usage: 0.14, accept len: 2.50, cuda graph: True, "
    "gen throughput (token/s): 812.5, #queue-req: 3",
    "0.5.3": "Decode batch. #running-req: 24, #token: 60000, token usage: 0.14, pre-allocated usage: 0.00, "
    "#prealloc-req: 4, #transfer-req: 5, #retracted-req: 6, cuda graph: True, gen throughput (token/s): 812.5, "
    "#queue-req: 3",
    "0.5.5": "Decode batch, #running-req: 24, #token: 60000, token usage: 0.14, accept len: 2.50, accept rate: 0.75, "
    "cuda graph: True, gen throughput (token/s): 812.5, #queue-req: 3",
    "0.5.5 with iterations": "Decode batch [4711], #running-req: 24, #token: 60000, token usage: 0.14, cpu graph: "
    "False, gen throughput (token/s): 812.5, #queue-req: 3",
    "0.5.12": "Decode batch, #running-req: 24, #token: 60000, token usage: 0.14, npu graph: True, gen throughput "
    "(token/s): 812.5, #queue-req: 3, fwd occupancy: 91.20%",
    "0.5.23": "Decode batch, #running-req: 24, #token: 60000, token usage: 0.14, cuda graph: True, gen throughput "
    "(token/s): 812.5, #queue-req: 3, fwd occupancy: 91.20%, fwd+idle occupancy: 97.10%",
    "with model flops": "Decode batch, #running-req: 24, #token: 60000, token usage: 0.14, cuda graph: True, gen "
    "throughput (token/s): 812.5, #queue-req: 3, TFLOPS/s: 12.50, read BW (GB/s): 900.10",
}
PREFILLS = {
    "0.4.0": "Prefill batch. #new-seq: 2, #new-token: 4096, #cached-token: 512, cache hit rate: 11.11%, token usage: "
    "0.05, #running-req: 7, #queue-req: 3",
    "0.4.10": "Prefill batch. #new-seq: 2, #new-token: 4096, #cached-token: 512, token usage: 0.05, #running-req: 7, "
    "#queue-req: 3, timestamp: 2025-08-01T10:00:00.123456",
    "0.5.2 disaggregated": "Prefill batch. #new-seq: 2, #new-token: 4096, #cached-token: 512, token usage: 0.05, "
    "#unbootstrapped-req: 1, #queue-req: 3, #transferring-req: 0, input throughput (token/s): 100.0, #running-req: 7",
    "0.5.11": "Prefill batch, #new-seq: 2, #new-token: 4096, #cached-token: 512, token usage: 0.05, #running-req: 7, "
    "#queue-req: 3, #pending-token: 900, cuda graph: False, input throughput (token/s): 2048.00",
    "0.5.23 disaggregated": "Prefill batch, #new-seq: 2, #new-token: 4096, #cached-token: 512, token usage: 0.05, "
    "#running-req: 7, #queue-req: 3, #pending-token: 0, #bootstrap-req: 2, #inflight-req: 1, cuda graph: False, input "
    "throughput (token/s): 2048.00",
}
VLLM = {
    "0.11.2": "Engine 003: Avg prompt throughput: 1200.5 tokens/s, Avg generation throughput: 800.0 tokens/s, Running: "
    "24 reqs, Waiting: 3 reqs, GPU KV cache usage: 14.0%, Prefix cache hit rate: 20.0%",
    "0.22.1": "Engine 003: Avg prompt throughput: 1200.5 tokens/s, Avg generation throughput: 800.0 tokens/s, Running: "
    "24 reqs, Waiting: 3 reqs, Deferred: 2 reqs, GPU KV cache usage: 14.0%, Prefix cache hit rate: 20.0%",
    "0.33.0": "Engine 003: Avg prompt throughput: 1200.5 tokens/s, Avg generation throughput: 800.0 tokens/s, Running: "
    "24 reqs, Waiting: 3 reqs, Deferred: 2 reqs, KV fetch: 1 waiting to start, 4 in progress, 0 completed waiting, GPU "
    "KV cache usage: 14.0%, Prefix cache hit rate: 20.0%, External prefix cache hit rate: 1.0%",
    "elsewhere": "Engine 003: Avg prompt throughput: 1200.5 tokens/s, Avg generation throughput: 800.0 tokens/s, "
    "Running: 24 reqs, Waiting: 3 reqs, CPU KV cache usage: 14.0%",
}
STAMP = "[2026-03-01 10:00:{second:02d}{part} DP{rank} TP{rank} EP{rank}] {text}"
OTHERS = [
    'INFO:     127.0.0.1:51234 - "GET /v1/loads HTTP/1.1" 200 OK',
    "[2026-03-01 10:00:03] Health check failed. Server couldn't get a response.",
    "[2026-03-01 10:00:03 DP1 TP1 EP1] load snapshot publish failed",
    "Traceback (most recent call last):",
    '  File "scheduler.py", line 1, in event_loop',
    "Decode batch without a prefix, #running-req: 99",
    "2026-03-01T10:00:03Z DEBUG Prefill batch elsewhere #new-token: 7",
    "\x1b[32m[2026-03-01 10:00:03 DP1 TP1] noise\x1b[0m",
    "",
    "[2026-03-01 10:00:03 DP1 TP1 EP1] Decode batch",
]


def line(text: str, rank: int = 0, second: int = 0, part: str = "") -> str:
    return STAMP.format(text=text, rank=rank, second=second, part=part)


def vllm_line(text: str, second: int = 0) -> str:
    return f"(APIServer pid=4242) INFO 09-21 14:13:{second:02d} [loggers.py:335] {text}"


def read(*lines: str) -> tuple[LedgerAnswer, ...]:
    return parse_log("\n".join(lines) + "\n", "server.log")


def told(answer: LedgerAnswer, name: str, rank: int = 0) -> float:
    return float(answer.values[name][answer.ranks.index(rank)])


@pytest.mark.parametrize("release", DECODES)
@pytest.mark.parametrize("part", ["", ".125"])
def test_decode_lines_of_every_release_tell_requests_and_tokens(release: str, part: str) -> None:
    last = read(line(DECODES[release], 2, part=part), line(DECODES[release], 5, 1, part))[-1]
    assert (last.engine, last.interface, last.ranks) == ("sglang", "sglang-log", (2, 5))
    assert told(last, "running_requests", 2) == 24
    assert told(last, "waiting_requests", 5) == 3
    assert told(last, "used_tokens", 2) == 60000
    assert told(last, "kv_usage_ratio", 2) == pytest.approx(0.14)
    assert ("accept_length" in last.values) == ("accept len" in DECODES[release])


@pytest.mark.parametrize("release", PREFILLS)
def test_prefill_lines_of_every_release_add_up_tokens(release: str) -> None:
    answers = read(*(line(PREFILLS[release], 1, second) for second in range(4)))
    last = answers[-1]
    assert told(answers[0], "prefill_tokens", 1) == 0
    assert told(last, "prefill_tokens", 1) == 4 * 4096
    assert told(last, "cached_tokens", 1) == 4 * 512
    assert told(last, "admitted_requests", 1) == 8
    assert told(last, "running_requests", 1) == 7
    assert told(last, "waiting_requests", 1) == 3


def test_queues_of_a_disaggregated_engine_are_told() -> None:
    last = read(line(DECODES["0.5.3"]), line(PREFILLS["0.5.23 disaggregated"], 1))[-1]
    assert told(last, "decode_prealloc_requests") == 4
    assert told(last, "decode_transfer_requests") == 5
    assert told(last, "load_retracted_requests") == 6
    assert told(last, "prefill_bootstrap_requests", 1) == 2
    assert told(last, "prefill_inflight_requests", 1) == 1


@pytest.mark.parametrize("release", VLLM)
def test_statistics_of_every_release_of_vllm_tell_requests_and_cache(release: str) -> None:
    last = read(vllm_line(VLLM[release]), vllm_line(VLLM[release].replace("003", "011"), 10))[-1]
    assert (last.engine, last.interface, last.ranks) == ("vllm", "vllm-log", (3, 11))
    assert told(last, "running_requests", 3) == 24
    assert told(last, "waiting_requests", 11) == 3
    assert told(last, "kv_usage_ratio", 3) == pytest.approx(0.14)
    assert ("deferred_requests" in last.values) == ("Deferred" in VLLM[release])


def test_iterations_of_vllm_add_up() -> None:
    text = (
        "Engine 002: Iteration({n}): 1 context requests, 512 context tokens, 20 generation requests, 20 generation "
        "tokens, iteration elapsed time: 31.50 ms, GPU KV cache usage: 14.2%"
    )
    last = read(*(vllm_line(text.format(n=n), n) for n in range(5)))[-1]
    assert told(last, "iterations", 2) == 5
    assert told(last, "prefill_tokens", 2) == 5 * 512
    assert told(last, "decode_tokens", 2) == 100
    assert told(last, "kv_usage_ratio", 2) == pytest.approx(0.142)


def test_iterations_that_the_engines_own_process_logs_belong_to_its_rank() -> None:
    """As vLLM 0.22.1 does."""
    text = (
        "(EngineCore_DP{rank} pid=7) INFO 09-21 14:13:0{second} [core.py:99] Iteration({second}): 1 context requests, "
        "512 context tokens, 20 generation requests, 20 generation tokens, iteration elapsed time: 31.50 ms"
    )
    last = read(*(text.format(rank=rank, second=second) for second in range(3) for rank in (1, 6)))[-1]
    assert last.ranks == (1, 6)
    assert told(last, "decode_tokens", 6) == 60


def test_a_statistics_line_of_no_engine_belongs_to_no_rank() -> None:
    with pytest.raises(InputError, match="no line that tells the load"):
        read(vllm_line(VLLM["0.33.0"].removeprefix("Engine 003: ")))


def test_lines_of_other_loggers_change_nothing() -> None:
    plain = [line(DECODES["0.5.23"], rank, second) for second in range(3) for rank in (0, 1)]
    mixed = [one for pair in zip(plain, OTHERS, strict=False) for one in pair] + OTHERS
    clean, noisy = read(*plain)[-1], read(*mixed)[-1]
    assert clean.ranks == noisy.ranks
    assert {name: list(table) for name, table in clean.values.items()} == {
        name: list(table) for name, table in noisy.values.items()
    }


@given(st.integers(0, 400))
def test_a_torn_line_never_breaks_the_reading(cut: int) -> None:
    whole = line(DECODES["0.5.23"], 0)
    last = read(whole, line(DECODES["0.5.23"], 1), line(PREFILLS["0.5.11"], 1, 1)[:cut])[-1]
    assert told(last, "running_requests") == 24


@given(st.text(alphabet=st.sampled_from("#:., -0123456789abcdefN[]()%/\n\t"), max_size=200))
def test_nonsense_behind_a_prefix_is_passed_over(text: str) -> None:
    answers = read(line(DECODES["0.5.23"]), line(f"Decode batch, {text}", 1))
    assert told(answers[-1], "used_tokens") == 60000


@pytest.mark.parametrize("number", ["9" * 400, "9" * 30, "-5", "1.2.3", ".", "-", "1e5", "nan"])
def test_numbers_that_are_none_or_huge_do_not_break_the_reading(number: str) -> None:
    text = f"Decode batch, #running-req: {number}, #token: 7, token usage: 0.1, #queue-req: 0"
    last = read(line(text), line(DECODES["0.5.23"], 1))[-1]
    assert told(last, "used_tokens") == 7
    running = told(last, "running_requests")
    assert np.isnan(running) or np.isfinite(running)


def test_one_rank_without_a_label_cannot_be_told_apart() -> None:
    text = f"[2026-03-01 10:00:00 TP0] {DECODES['0.5.23']}"
    last = read(text, text)[-1]
    assert last.unlabelled
    assert last.ranks == ()


def test_lines_out_of_order_are_read_by_their_time() -> None:
    lines = [line(DECODES["0.5.23"].replace("24", str(second)), second=second) for second in (5, 0, 9, 2)]
    answers = read(*lines)
    assert told(answers[-1], "running_requests") == 9
    stamps = [answer.taken_ns or 0 for answer in answers]
    assert stamps == sorted(stamps)


def test_a_log_of_a_day_is_told_at_so_many_moments() -> None:
    lines = [
        f"[2026-03-01 {hour:02d}:{minute:02d}:00 DP{rank} TP{rank}] {DECODES['0.5.23']}"
        for hour in range(24)
        for minute in range(0, 60, 5)
        for rank in (0, 1)
    ]
    answers = read(*lines)
    assert len(answers) <= MOST_MOMENTS + 2
    assert told(answers[-1], "running_requests", 1) == 24


@pytest.mark.parametrize("text", ["", "\n\n", "nothing of load here\n", "[2026-03-01 10:00:00] hello\n"])
def test_a_log_without_load_is_refused(text: str) -> None:
    assert not is_log(text)
    with pytest.raises(InputError, match="no line that tells the load"):
        parse_log(text, "server.log")


def test_a_log_that_adds_engines_up_is_refused_with_the_mend() -> None:
    text = vllm_line(VLLM["0.33.0"].replace("Engine 003", "8 Engines Aggregated"))
    assert is_log(text)
    with pytest.raises(InputError, match="without --aggregate-engine-logging"):
        parse_log(text, "server.log")


@pytest.mark.parametrize("date", ["[2026-13-41 10:00:00 DP0 TP0]", "[2026-02-30 25:61:61 DP0 TP0]"])
def test_a_date_that_is_none_is_passed_over(date: str) -> None:
    last = read(f"{date} {DECODES['0.5.23']}", line(DECODES["0.5.23"], 1))[-1]
    assert last.ranks == (1,)


@pytest.mark.parametrize("date", ["13-41 10:00:00", "02-30 10:00:00", "09-21 25:61:61"])
def test_a_date_of_vllm_that_is_none_is_passed_over(date: str) -> None:
    wrong = f"(APIServer pid=1) INFO {date} [loggers.py:335] {VLLM['0.33.0']}"
    assert read(wrong, vllm_line(VLLM["0.33.0"].replace("003", "001")))[-1].ranks == (1,)


def test_a_log_over_new_year_keeps_its_order() -> None:
    lines = [
        f"(APIServer pid=1) INFO {date} [loggers.py:335] {VLLM['0.33.0'].replace('24 reqs', f'{count} reqs')}"
        for date, count in (("12-31 23:59:50", 5), ("01-01 00:00:00", 6), ("01-01 00:00:10", 7))
    ]
    answers = read(*lines)
    assert told(answers[-1], "running_requests", 3) == 7
    assert len(answers) < 40
