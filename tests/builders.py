"""Values for tests, made by naming only what a test is about."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from dprankdiag.model.comparison import (
    AccountRow,
    Batch,
    Bet,
    CauseChange,
    Change,
    ComparedSide,
    Comparison,
    EngineChange,
    KindChange,
    StepGain,
)
from dprankdiag.model.diagnosis import (
    Abstention,
    Alternative,
    CauseLoss,
    Diagnosis,
    Evidence,
    Finding,
    Lost,
    Remedy,
    StepTime,
    TimeAccount,
    TimeWindow,
)
from dprankdiag.model.ranks import Rank
from dprankdiag.model.sources import Source

SECOND_NS = 1_000_000_000
STEP_NS = 30_000_000
STEPS = 40


def rank(number: int, **changes: Any) -> Rank:
    """Make a rank that waits for rank 3, and rank 3 that waits least."""
    is_late = number == 3
    known = Rank(
        engine="default",
        rank=number,
        level="gpu",
        identified_by="thread-name",
        grade="sure",
        dp_rank=number,
        tp_rank=0,
        pp_rank=0,
        ep_rank=number,
        host="node-a",
        device=number,
        gpu=f"GPU-{number}",
        pid=4100 + number,
        process=f"sglang::scheduler_DP{number} (pid {4100 + number})",
        work_ns=1_100_000_000 if is_late else 820_000_000,
        wait_ns=10_000_000 if is_late else 290_000_000 + number,
        transfer_ns=80_000_000,
        idle_ns=10_000_000,
    )
    return replace(known, **changes)


def evidence(**changes: Any) -> Evidence:
    """Make the evidence of uneven attention work."""
    known = Evidence(
        name="attention_work_ratio",
        value=2.5,
        unit="ratio",
        text="attention of rank 3 takes 2.5 × its peers' median",
        expected=1.0,
        samples=640,
    )
    return replace(known, **changes)


def remedy(**changes: Any) -> Remedy:
    """Make the remedy against uneven contexts."""
    known = Remedy("route-by-tokens", "Route by KV tokens, not by request count.", 0.15, "replayed", (0.1, 0.2))
    return replace(known, **changes)


def finding(**changes: Any) -> Finding:
    """Make a critical load finding on rank 3."""
    known = Finding(
        id="f1",
        cause="load.context",
        engine="default",
        ranks=(3,),
        layers=None,
        who="one",
        when="steady",
        severity="critical",
        lost_ns=252_000_000,
        lost_ratio=0.21,
        window_lost_ratio=0.21,
        interval=(0.19, 0.23),
        basis="replayed",
        recoverable_ns=180_000_000,
        confidence=0.97,
        window=TimeWindow(start_ns=0, end_ns=STEPS * STEP_NS),
        onset_ns=None,
        period_ns=None,
        summary="Rank 3 holds longer contexts than its peers; all ranks wait for its attention in every layer.",
        evidence=(evidence(),),
        alternatives=(Alternative("single_point.gpu", "equal-work kernels of rank 3 slower than its peers'"),),
        remedies=(remedy(),),
    )
    return replace(known, **changes)


def time_account(**changes: Any) -> TimeAccount:
    """Make the account of 40 decode steps on one clock."""
    known = TimeAccount(
        clock="session",
        start_ns=0,
        end_ns=STEPS * STEP_NS,
        steps=STEPS,
        step_kinds={"decode": STEPS},
        collectives=640,
        matched_ratio=0.998,
        clock_residual_ns=900,
        replay_error_ratio=0.004,
    )
    return replace(known, **changes)


def lost(**changes: Any) -> Lost:
    """Make an account of lost time that closes."""
    known = Lost(
        total_ns=260_000_000,
        ratio=0.216667,
        interval=(0.19, 0.24),
        by_cause=(CauseLoss("load.context", 252_000_000, 0.21),),
        unexplained_ns=8_000_000,
        jitter_ns=12_000_000,
        gpu_ns=2_080_000_000,
    )
    return replace(known, **changes)


NOTHING_LOST = Lost(
    total_ns=None, ratio=None, interval=None, by_cause=(), unexplained_ns=None, jitter_ns=None, gpu_ns=None
)


def source(**changes: Any) -> Source:
    """Make a used Nsight Systems export of eight ranks."""
    known = Source(
        path="run.sqlite",
        kind="nsys-sqlite",
        status="used",
        producer="2025.5.1",
        kernels=51_200,
        ranks=tuple(range(8)),
        lacked=("GPU_METRICS",),
        warnings=(),
    )
    return replace(known, **changes)


def abstention(**changes: Any) -> Abstention:
    """Make an abstention that names its cure."""
    known = Abstention(
        cause="single_point.host",
        reason="the recording holds no CUDA API rows",
        lacked=("CUPTI_ACTIVITY_KIND_RUNTIME",),
        get_it_with="nsys profile -t cuda,nvtx,osrt",
    )
    return replace(known, **changes)


def diagnosis(**changes: Any) -> Diagnosis:
    """Make a diagnosis with one critical finding on rank 3 of 8."""
    known = Diagnosis(
        status="findings",
        headline="Rank 3 costs 21 % of every step: its contexts are longer than its peers'.",
        inputs=(source(),),
        ranks=tuple(rank(number) for number in range(8)),
        time=time_account(),
        step=StepTime(median_ns=STEP_NS, balanced_median_ns=23_700_000),
        lost=lost(),
        findings=(finding(),),
        abstentions=(abstention(),),
        notes=(),
    )
    return replace(known, **changes)


def even_diagnosis(**changes: Any) -> Diagnosis:
    """Make a healthy diagnosis: even ranks, no finding."""
    known = diagnosis(
        status="healthy",
        headline="All 8 ranks are even: less than 1 % of the time is lost to skew.",
        ranks=tuple(rank(number, work_ns=820_000_000, wait_ns=20_000_000) for number in range(8)),
        lost=lost(total_ns=6_000_000, ratio=0.005, interval=(0.0, 0.01), by_cause=(), unexplained_ns=6_000_000),
        findings=(),
    )
    return replace(known, **changes)


def undecided_diagnosis(**changes: Any) -> Diagnosis:
    """Make an inconclusive diagnosis: two files that hold no collectives."""
    known = diagnosis(
        status="inconclusive",
        headline="Cannot tell: no collective was found in which the ranks meet.",
        ranks=tuple(
            rank(number, identified_by="order", grade="assumed", work_ns=None, wait_ns=None, transfer_ns=None)
            for number in range(2)
        ),
        time=time_account(steps=0, step_kinds={}, collectives=0, matched_ratio=None, replay_error_ratio=None),
        step=StepTime(median_ns=None, balanced_median_ns=None),
        lost=NOTHING_LOST,
        findings=(),
    )
    return replace(known, **changes)


def change(before: float | None, after: float | None, **changes: Any) -> Change:
    """Make a change of a time that was tested and is significant unless both are equal."""
    difference = None if before is None or after is None else after - before
    if difference is None:
        return replace(Change(before, after), **changes)
    direction: Any = "worse" if difference > 0 else "better" if difference < 0 else "unchanged"
    reach = 0.1 * abs(difference)
    known = Change(before, after, difference, (difference - reach, difference + reach), 0.001, direction)
    return replace(known, **changes)


def cause_change(**changes: Any) -> CauseChange:
    """Make a load fault on rank 3 that is gone."""
    known = CauseChange(
        cause="load.context",
        engine="default",
        presence="gone",
        before_ranks=(3,),
        after_ranks=(),
        before_severity="critical",
        after_severity=None,
        lost_ns=change(6_300_000.0, 0.0),
        lost_ratio=change(0.21, 0.0, chance=None, direction=None),
        summary="load.context on rank 3 is gone (6.30 ms a step before)",
    )
    return replace(known, **changes)


def bet(**changes: Any) -> Bet:
    """Make a bet on token balance that was kept."""
    known = Bet(
        findings=("f1",),
        cause="load.context",
        engine="default",
        ranks=(3,),
        remedy="balance-tokens",
        command="--load-balance-method total_tokens",
        is_stated=True,
        predicted=StepGain(0.21, (0.19, 0.23)),
        basis="replayed",
        measured=StepGain(0.2, (0.18, 0.22)),
        verdict="kept",
        reason=None,
    )
    return replace(known, **changes)


def comparison(**changes: Any) -> Comparison:
    """Make a comparison in which a load fault is gone and the step is shorter."""
    kind = KindChange(
        "decode",
        STEPS,
        STEPS,
        change(30_000_000.0, 23_700_000.0),
        Batch(128.0, 260_000.0, None),
        Batch(130.0, 255_000.0, None),
    )
    engine = EngineChange(
        "default",
        tuple(range(8)),
        (),
        kind.step_ns,
        (kind,),
        (
            AccountRow("load.context", 6_300_000, 0),
            AccountRow("unexplained", 200_000, 150_000),
            AccountRow("even ranks", 23_500_000, 23_550_000),
        ),
        Change(1.0, 1.002, 0.002, (-0.003, 0.007), 0.9, "unchanged"),
        change(2_000_000.0, 2_000_000.0, chance=1.0),
    )
    known = Comparison(
        verdict="better",
        headline="Better: steps take 6.30 ms (21 %) less; load.context on rank 3 is gone (6.30 ms a step before)",
        before=ComparedSide(("before.sqlite",), "findings", diagnosis().headline, 8, STEPS),
        after=ComparedSide(("after.dprank",), "healthy", even_diagnosis().headline, 8, STEPS),
        reasons=(),
        engines=(engine,),
        causes=(cause_change(),),
        notes=("mixed steps of this order of collectives are only in the recording before: 3 left out",),
        bets=(bet(),),
    )
    return replace(known, **changes)


def incomparable(**changes: Any) -> Comparison:
    """Make a comparison of eight ranks with four."""
    (engine,) = comparison().engines
    reason = "8 ranks before, 4 after"
    nothing = Change(None, None)
    known = comparison(
        verdict="not_comparable",
        headline=f"Not comparable: {reason}",
        after=replace(comparison().after, ranks=4),
        engines=(
            replace(
                engine,
                ranks=tuple(range(4)),
                reasons=(reason,),
                step_ns=nothing,
                kinds=(),
                account=(),
                speed=nothing,
                transfer_ns=nothing,
            ),
        ),
        causes=(cause_change(lost_ns=nothing, lost_ratio=nothing, summary="load.context was found before on rank 3"),),
        notes=(),
    )
    return replace(known, **changes)
