"""Count and show what an engine would, while a serving world runs: the ledger of its tables up to any moment.

Counters grow when a step is over. The tables hold no waits at the border of a step: told is the floor of a gather among
ranks that are all ready. The world knows GPU work, which is not seen there, as in a mixture of experts all GPUs finish
together.
"""

from __future__ import annotations

from collections.abc import Mapping
from threading import Lock

import numpy as np

from dprankdiag.harness.events import Array
from dprankdiag.harness.ledger_counts import CACHED, GAUGES, SNAPSHOT, Counts, Shown
from dprankdiag.harness.ledger_engine import LedgerState
from dprankdiag.harness.ledger_steps import CONTROL_FLOOR_S, GATHER_FLOOR_S, Slice
from dprankdiag.harness.served_engine import ServedEngine
from dprankdiag.harness.served_ranks import IDLE_REPORT_S, LEVELS, NS_PER_S, RankHistory, Steps
from dprankdiag.harness.served_requests import Events, list_ends, list_retractions
from dprankdiag.model.schema import ABSENT_NS, Columns, take_rows
from dprankdiag.simulate.world_tables import MODES, QUEUE_COLUMNS, Outcome

LAP_PAUSE_NS = NS_PER_S
"""From the end of a world that loops until it begins anew."""

MOST_STEPS = 4096
"""Steps that are counted at once."""

_IDLE, _VERIFY = MODES.index("idle"), MODES.index("verify")


class ServedLedger:
    """The ledger of one engine of a world.

    Args:
        pace: so many times faster than in the world everything happens.
        epoch_s: UTC of the world's beginning.
        loop: a second after its end the world begins anew, and counters go on from where they are.
    """

    def __init__(
        self, outcome: Outcome, engine: ServedEngine, pace: float = 1.0, epoch_s: float = 0.0, loop: bool = False
    ) -> None:
        self.engine, self.pace = engine, pace
        self._epoch_s = epoch_s
        self._lock = Lock()
        steps = take_rows(outcome.steps, outcome.steps["worker"] == engine.number)
        end_ns = steps["start_ns"] + steps["total_ns"]
        order = np.argsort(end_ns, kind="stable")
        self.steps = take_rows(steps, order)
        self._end_ns: Array = end_ns[order]
        by_start = np.argsort(steps["start_ns"], kind="stable")
        self._starts_ns, self._numbers = steps["start_ns"][by_start], steps["step"][by_start]
        self._rows = _place_rows(outcome, engine, self.steps["step"])
        self._firsts = np.searchsorted(self._rows["place"], np.arange(len(order) + 1))
        requests = take_rows(outcome.requests, outcome.requests["refused"] == 0)
        published = take_rows(outcome.publishes, outcome.publishes["worker"] == engine.number)
        self._prompts = self._list_prompts(requests)
        self._ends = list_ends(requests, engine.number)
        self._ranks = [self._open(rank, published) for rank in range(engine.ranks)]
        self._retractions = list_retractions(requests, engine.number, [rank.steps for rank in self._ranks])
        self._tokens_again = self._measure_again(requests)
        self._rested_ns = self._find_rests()
        self.counts = Counts.start(engine.ranks, layers=0)
        self._counted_ns, self._told_ns = -1, 0
        self._idle_ns = np.zeros(engine.ranks)
        self._lap, self._lap_ns = 0, self.last_ns + LAP_PAUSE_NS if loop else None

    @property
    def last_ns(self) -> int:
        """Tell when the last step is over."""
        return int(self._end_ns[-1]) if len(self._end_ns) else 0

    def count_steps(self) -> int:
        """Count the steps of the engine."""
        return len(self._end_ns)

    def tell_number(self, place: int) -> int:
        """Tell the number, in the tables of the world, of the engine's step at a place in order of their beginning."""
        return int(self._numbers[place])

    def count_begun(self, now_ns: int) -> int:
        """Count the steps that have begun, where the world loops since it last began."""
        within_ns = now_ns if self._lap_ns is None else now_ns % self._lap_ns
        return int(np.searchsorted(self._starts_ns, within_ns, "right"))

    def advance(self, now_ns: int) -> LedgerState:
        """Count up to a moment of the world, and tell what there is to see; never less than was told before."""
        with self._lock:
            now_ns = self._told_ns = max(now_ns, self._told_ns)
            self._finish_laps(now_ns)
            self._count(now_ns - self._lap_start_ns)
            return self._tell(now_ns)

    @property
    def _lap_start_ns(self) -> int:
        return self._lap * (self._lap_ns or 0)

    def _finish_laps(self, now_ns: int) -> None:
        """Count to its end each time that the world has run through."""
        while self._lap_ns is not None and now_ns >= (self._lap + 1) * self._lap_ns:
            self._count(self._lap_ns)
            self._lap += 1
            self._counted_ns = -1
            self._idle_ns = np.zeros(self.engine.ranks)

    def _list_prompts(self, requests: Columns) -> Events:
        """List the prompts that the engine computed, each by the end of its last step."""
        computed = (requests["prefill_worker"] == self.engine.number) & (requests["first_ns"] != ABSENT_NS)
        mine = take_rows(requests, computed)
        place = np.zeros(len(mine["request"]), np.int64)
        for rank in range(self.engine.ranks):
            rows = self._rows["place"][(self._rows["rank"] == rank) & (self._rows["prompt_tokens"] > 0)]
            here = mine["prefill_rank"] == rank
            place[here] = rows[np.searchsorted(self._end_ns[rows], mine["first_ns"][here], "right") - 1]
        together = np.bincount(self._rows["place"][self._rows["prompt_tokens"] > 0], minlength=len(self._end_ns))
        amounts = {
            "place": place,
            "prompt": mine["prompt_tokens"],
            "cached": np.where(mine["cached_tokens"] == ABSENT_NS, 0, mine["cached_tokens"]),
            "first_ns": mine["first_ns"] - mine["arrival_ns"],
            "queued_ns": np.maximum(0, self.steps["start_ns"][place] - mine["placed_ns"]),
            "together": together[place],
        }
        return Events(self._end_ns[place], mine["prefill_rank"], amounts).sort()

    def _open(self, rank: int, published: Columns) -> RankHistory:
        """Gather what concerns one rank."""
        rows = take_rows(self._rows, self._rows["rank"] == rank)
        mine = self._prompts.rank == rank
        done = np.searchsorted(rows["place"], self._prompts.amounts["place"][mine])
        steps = Steps(
            start_ns=self.steps["start_ns"][rows["place"]],
            end_ns=self._end_ns[rows["place"]],
            requests=rows["requests"],
            kv_tokens=rows["kv_tokens"],
            prompt_tokens=rows["prompt_tokens"],
            cached=np.bincount(done, weights=self._prompts.amounts["cached"][mine], minlength=len(rows["place"])),
            levels={name: rows[name] for name in LEVELS},
        )
        told = take_rows(published, published["rank"] == rank)
        return RankHistory(steps, told, float(self.engine.accept_by_rank[rank]), self.pace)

    def _measure_again(self, requests: Columns) -> Array:
        """Measure the tokens that come out of computing a prompt again, for each retraction, `(ranks,)`.

        A request that lost its place may lose it again before it gets so far.
        """
        mine = take_rows(requests, (requests["worker"] == self.engine.number) & (requests["end_ns"] != ABSENT_NS))
        made = self._sum(mine["rank"], mine["output_tokens"] - 1)
        decoded = self._sum(self._rows["rank"], self._rows["requests"]) * self.engine.accept
        lost = self._sum(mine["rank"], mine["retractions"])
        again: Array = np.maximum(0.0, made - decoded) / np.maximum(lost, 1.0)
        return again

    def _find_rests(self) -> Array:
        """List when the whole engine had been idle for so long that it wrote its gauges."""
        lasting_ns = round(IDLE_REPORT_S * self.pace * NS_PER_S)
        latest_ns = np.maximum.accumulate(self._end_ns)
        next_ns = np.append(self._starts_ns, np.iinfo(np.int64).max)[1:]
        rests: Array = latest_ns[next_ns - latest_ns > lasting_ns] + lasting_ns
        return rests

    def _count(self, now_ns: int) -> None:
        first, last = (int(np.searchsorted(self._end_ns, at, "right")) for at in (self._counted_ns, now_ns))
        for begin in range(first, last, MOST_STEPS):
            self._count_steps(begin, min(begin + MOST_STEPS, last))
        idle_ns = np.array([rank.idle_ns(now_ns) for rank in self._ranks], float)
        idle_s = np.maximum(0.0, idle_ns - self._idle_ns) / (NS_PER_S * self.pace)
        self.counts.add(idle_s=idle_s, cpu_s=idle_s)
        self._idle_ns = np.maximum(self._idle_ns, idle_ns)
        self._count_requests(now_ns)
        self._counted_ns = now_ns

    def _count_steps(self, first: int, last: int) -> None:
        ran, graph = self._make_slice(first, last)
        self.counts.add_slice(ran, self.engine.accept, graph=graph, pace=self.pace)
        self.counts.add(
            generated=(ran.rows * self.engine.accept).sum(axis=0),
            iterations=-self._find_silent(ran, first).sum(axis=0),
        )

    def _find_silent(self, ran: Slice, first: int) -> Array:
        """Find where a rank only computed parts of prompts that it did not finish, `(steps, ranks)`.

        Of such steps vLLM's front end hears nothing, so that it counts no iteration.
        """
        place = self._prompts.amounts["place"] - first
        here = (place >= 0) & (place < len(ran))
        finishes = np.zeros(ran.tokens.shape, bool)
        finishes[place[here], self._prompts.rank[here]] = True
        silent: Array = (ran.prefill > 0) & (ran.rows == 0) & ~finishes
        return silent

    def _make_slice(self, first: int, last: int) -> tuple[Slice, Array]:
        """Lay steps out as matrices of steps and ranks."""
        begin, end = self._firsts[first], self._firsts[last]
        rows = {name: values[begin:end] for name, values in self._rows.items()}
        place, rank = rows["place"] - first, rows["rank"]
        shape = (last - first, self.engine.ranks)

        def lay_out(values: Array) -> Array:
            matrix = np.zeros(shape)
            matrix[place, rank] = values
            return matrix

        ran = lay_out(np.ones(len(rank))) > 0
        prefill, requests = lay_out(rows["prompt_tokens"]), lay_out(rows["requests"])
        seconds = self.steps["total_ns"][first:last] / (NS_PER_S * self.pace)
        meets = ran & self.engine.lockstep
        floor_s = GATHER_FLOOR_S / self.pace * _vary(np.arange(first, last), self.engine.ranks)
        laid = Slice(
            prefill=prefill,
            rows=requests,
            tokens=prefill + requests,
            pairs=lay_out(rows["kv_tokens"] + rows["prompt_pairs"]),
            active=prefill + requests > 0,
            step_s=seconds[:, None] * ran,
            gather_s=floor_s * meets,
            control_s=CONTROL_FLOOR_S / self.pace * meets,
            ran=ran,
            idle_s=np.zeros(self.engine.ranks),
            debt_s=np.zeros(self.engine.ranks),
        )
        return laid, self.steps["graph"][first:last] > 0

    def _count_requests(self, now_ns: int) -> None:
        """Count prompts that are done, requests that ended, and those that lost their places."""
        rank, told = self._take(self._prompts, now_ns)
        by_rank = {name: self._sum(rank, values) for name, values in told.items()}
        number = self._sum(rank, np.ones(len(rank)))
        seconds = {name: by_rank[name] / (NS_PER_S * self.pace) for name in ("first_ns", "queued_ns")}
        self.counts.add(
            firsts=number, first_s=seconds["first_ns"], admitted=number, queued_s=seconds["queued_ns"],
            prompt_seen=by_rank["prompt"], prompt_found=by_rank["cached"], cached=by_rank["cached"],
            looked_up=by_rank["prompt"], found=by_rank["cached"],
            iteration_tokens=by_rank["prompt"] - by_rank["cached"],
        )  # fmt: skip
        np.add.at(self.counts.together[CACHED], (told["together"], rank), told["cached"])
        rank, _ = self._take(self._ends, now_ns)
        self.counts.add(done=self._sum(rank, np.ones(len(rank))))
        rank, told = self._take(self._retractions, now_ns)
        retracted = self._sum(rank, np.ones(len(rank)))
        if self.engine.name == "vllm":
            self.counts.add(generated=retracted * self._tokens_again)
        self.counts.add(
            retracted=retracted,
            retracted_prompt=self._sum(rank, told["prompt"]),
            retracted_output=self._sum(rank, told["output"]),
        )

    def _take(self, events: Events, now_ns: int) -> tuple[Array, Mapping[str, Array]]:
        first, last = (int(np.searchsorted(events.time_ns, at, "right")) for at in (self._counted_ns, now_ns))
        return events.rank[first:last], {name: values[first:last] for name, values in events.amounts.items()}

    def _sum(self, rank: Array, values: Array) -> Array:
        return np.bincount(rank, weights=values, minlength=self.engine.ranks)

    def _tell(self, now_ns: int) -> LedgerState:
        by_step = self.engine.name == "vllm"
        within_ns = now_ns - self._lap_start_ns
        levels = [rank.levels(rank.find_told_ns(within_ns) if by_step else within_ns) for rank in self._ranks]
        return LedgerState(
            seconds=now_ns / (NS_PER_S * self.pace),
            ranks=self.engine.ranks,
            running=np.array([level["running"] for level in levels]),
            waiting=np.array([level["waiting"] for level in levels]),
            used=np.array([level["used_tokens"] for level in levels]),
            counts=self.counts.copy(),
            shown=self._show(within_ns),
            accept=self.engine.accept,
            capacity=self.engine.capacity,
            epoch_s=self._epoch_s,
            queues={name: np.array([level[name] for level in levels]) for name in QUEUE_COLUMNS},
        )

    def _show(self, within_ns: int) -> Shown:
        gauges = self._list_gauges(within_ns)
        snapshots = [rank.snapshot(within_ns) for rank in self._ranks]
        shown = Shown.start(self.engine.ranks)
        shown.gauges = {name: np.array([each[name] for each in gauges]) for name in GAUGES}
        shown.snapshot = {name: np.array([each[name] for each, _ in snapshots]) for name in SNAPSHOT}
        shown.moments = np.stack([moments for _, moments in snapshots])
        if self._lap_ns is not None and self._lap:
            self._add_laps(shown, self._lap_ns)
        return shown

    def _list_gauges(self, within_ns: int) -> list[dict[str, float]]:
        """List each rank's gauges, by what it wrote last."""
        rests = int(np.searchsorted(self._rested_ns, within_ns, "right"))
        rested_ns = int(self._rested_ns[rests - 1]) if rests else None
        return [rank.gauges(within_ns, rested_ns) for rank in self._ranks]

    def _add_laps(self, shown: Shown, lap_ns: int) -> None:
        """Add what ended laps have left behind: sums, and gauges that were not written since."""
        ended = [rank.snapshot(lap_ns) for rank in self._ranks]
        for name in ("stamp_s", "computed", "prefill_busy_s"):
            shown.snapshot[name] += self._lap * np.array([each[name] for each, _ in ended])
        shown.moments += self._lap * np.stack([moments for _, moments in ended])
        before = self._list_gauges(lap_ns)
        for name, values in shown.gauges.items():
            shown.gauges[name] = np.where(np.isnan(values), [each[name] for each in before], values)


def _place_rows(outcome: Outcome, engine: ServedEngine, steps: Array) -> Columns:
    """Take an engine's rows by the place of their step, with what is no work of requests left out.

    Args:
        steps: numbers of the steps, in order of their ends.
    """
    table = take_rows(outcome.rank_steps, outcome.rank_steps["worker"] == engine.number)
    numbers = np.argsort(steps)
    place = numbers[np.searchsorted(steps[numbers], table["step"])]
    order = np.argsort(place, kind="stable")
    rows = {name: values[order] for name, values in {**table, "place": place}.items()}
    works = rows["mode"] != _IDLE
    width = np.where(rows["mode"] == _VERIFY, engine.verify_width, 1)
    return {**rows, "requests": rows["decode_rows"] // width * works, "kv_tokens": rows["kv_tokens"] * works}


def _vary(steps: Array, ranks: int) -> Array:
    """Give factors from 0.7 to 1.3 that follow from step and rank alone, `(steps, ranks)`."""
    mixed = steps.astype(np.uint64)[:, None] * np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed + np.arange(ranks, dtype=np.uint64) * np.uint64(0xBF58476D1CE4E5B9)) ^ (mixed >> np.uint64(29))
    mixed = (mixed ^ (mixed >> np.uint64(32))) * np.uint64(0x94D049BB133111EB)
    factors: Array = 0.7 + 0.6 * ((mixed >> np.uint64(11)) / float(1 << 53))
    return factors
