"""Ask a Prometheus what it stores of the engines: in which spelling, of which ranks, and what is missing."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from urllib.parse import urlencode

import msgspec

from dprankdiag.analysis.ledger_presence import list_gaps
from dprankdiag.catalog.checks import find_checks, load_families
from dprankdiag.catalog.engine_series import load_series
from dprankdiag.classifiers.base import name_numbers
from dprankdiag.collectors.http import ACCEPT_JSON
from dprankdiag.collectors.prometheus_devices import make_presence_path
from dprankdiag.collectors.prometheus_select import Matcher, write_selector
from dprankdiag.model.checkup import Checkup, Interface
from dprankdiag.model.ledgers import EngineName, Fact, NoData
from dprankdiag.pipelines.engine_doctor import DP_ATTENTION, Doctor, name_status
from dprankdiag.pipelines.judgeable import judge_causes
from dprankdiag.pipelines.sources import check_server
from dprankdiag.pipelines.stored import RHYTHM_S, StoredEngines

INTERFACE = "prometheus-query"

_NAMES = ("count by (__name__, job)", "(sglang|vllm)[:_].+")
_RANKS = {
    "sglang": (
        "count by (job, dp_rank, model_name)",
        "sglang[:_](dp_attention_tokens_total|realtime_tokens_total|num_running_reqs)",
    ),
    "vllm": ("count by (job, engine, model_name)", "vllm[:_]num_requests_running"),
}
_RANK_LABEL = {"sglang": "dp_rank", "vllm": "engine"}
_STEPS = ("sum by (job)", "sglang[:_]dp_attention_steps_total")
_UP = ("max by (job, instance)", "up")
"""Questions: an aggregation, and the names of the series it is over."""

Row = tuple[Mapping[str, str], float]


class PrometheusDoctor(Doctor):
    """Examines what Prometheus stores."""

    def examine(self, target: str, matchers: tuple[Matcher, ...] = ()) -> tuple[Checkup, ...]:
        """Ask one Prometheus; one checkup for each job whose series it stores, or one that says what is wrong.

        Args:
            matchers: choose series by their labels.
        """
        base = check_server(target)

        def ask(question: tuple[str, str]) -> tuple[list[Row] | None, Interface]:
            aggregation, series = question
            return self._query(base, f"{aggregation} ({write_selector(series, matchers)})")

        names, interface = ask(_NAMES)
        if names is None:
            return (_make_empty(base, interface, {}),)
        if not names:
            return (_make_empty(base, interface, {"stored": False}),)
        rows = {engine: ask(question)[0] or [] for engine, question in _RANKS.items()}
        steps, up = (ask(question)[0] or [] for question in (_STEPS, _UP))
        store = StoredEngines(base, self._fetcher, {}, matchers, clock=time.time_ns)
        rhythms = store.find_rhythms()
        gaps_s = {} if isinstance(rhythms, NoData) else {one.place[-1]: _round(gap_s) for one, gap_s in rhythms.items()}
        devices: dict[str, Fact] = {
            "devices_stored": bool(store.ask_series(make_presence_path(time.time(), RHYTHM_S, ())))
        }
        engines: tuple[EngineName, ...] = ("sglang", "vllm")
        found: dict[str, dict[str, Fact]] = {job: {"scrape_interval_s": gap_s} for job, gap_s in gaps_s.items()}
        return tuple(
            _sum_up(base, interface, engine, job, stored, rows[engine], steps, up, found.get(job, {}) | devices)
            for engine in engines
            for job, stored in sorted(_group_names(names, engine).items())
        )

    def _query(self, base: str, query: str) -> tuple[list[Row] | None, Interface]:
        """Ask one question; None where nothing came that can be read."""
        began = self._now()
        reply = self._fetcher.fetch(INTERFACE, base, f"/api/v1/query?{urlencode({'query': query})}", ACCEPT_JSON)
        seconds, where = self._now() - began, f"{base}/api/v1/query"
        if isinstance(reply, NoData):
            return None, Interface(INTERFACE, where, name_status(reply), seconds, None, reply.reason)
        rows = read_vector(reply.body)
        if rows is None:
            return None, Interface(INTERFACE, where, "failed", seconds, None, "expected the answer of a Prometheus")
        return rows, Interface(INTERFACE, where, "answered", seconds)


def read_vector(body: bytes) -> list[Row] | None:
    """Read an instant vector: labels and value of each series; None if it is none."""
    try:
        told = msgspec.json.decode(body)
        if told["status"] != "success" or told["data"]["resultType"] != "vector":
            return None
        return [(row["metric"], float(row["value"][1])) for row in told["data"]["result"]]
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, IndexError):
        return None


def _group_names(names: Sequence[Row], engine: str) -> dict[str, set[str]]:
    grouped: dict[str, set[str]] = {}
    for labels, _ in names:
        name = labels.get("__name__", "")
        if name.startswith((f"{engine}:", f"{engine}_")):
            grouped.setdefault(labels.get("job", ""), set()).add(name)
    return grouped


def _make_empty(base: str, interface: Interface, facts: Mapping[str, Fact]) -> Checkup:
    found = find_checks({"any_refused": interface.status == "refused", "any_slow": interface.status == "slow", **facts})
    return Checkup(base, None, None, None, (), None, (), (interface,), found, (), facts)


def _sum_up(
    base: str,
    interface: Interface,
    engine: EngineName,
    job: str,
    stored: set[str],
    ranks: Sequence[Row],
    steps: Sequence[Row],
    up: Sequence[Row],
    found: Mapping[str, Fact],
) -> Checkup:
    """Make the checkup of one job; pure.

    Args:
        found: facts that are known already.
    """
    mine = [labels for labels, _ in ranks if labels.get("job", "") == job]
    seen = tuple(sorted({int(text) for labels in mine if (text := labels.get(_RANK_LABEL[engine], "")).isdigit()}))
    bare = {name.removeprefix(engine)[1:] for name in stored}
    counted = next((value > 0 for labels, value in steps if labels.get("job", "") == job), False)
    missing = list_gaps(seen, 0)
    facts: dict[str, Fact] = {
        **found,
        "engine": engine,
        "stored": True,
        "spelling": _name_spelling(stored, engine),
        "unlabelled": bool(mine) and not seen,
        "ranks_seen": len(seen),
        "ranks": max(len(seen), seen[-1] + 1) if seen else 0,
        "ranks_missing": len(missing),
        "missing_ranks": name_numbers(missing),
        "targets_known": sum(labels.get("job", "") == job for labels, _ in up),
        "targets_down": sum(labels.get("job", "") == job and value == 0 for labels, value in up),
    }
    lacking = [name for name in load_families(engine) if name not in bare]
    facts |= {"families_missing": ", ".join(lacking)} if lacking else {}
    if engine == "sglang" and "dp_attention_steps_total" in bare:
        facts |= {"has_dp_attention": True, "dp_attention_steps_seen": counted}
    fields = {row.field for row in load_series(engine) if bare.intersection(row.names)}
    fields -= set(DP_ATTENTION) if facts.get("dp_attention_steps_seen") is False else set()
    return Checkup(
        target=f"{base} job {job}",
        engine=engine,
        version=None,
        model=next((labels["model_name"] for labels in mine if labels.get("model_name")), None),
        ranks=seen,
        expected_ranks=None,
        missing_ranks=missing,
        interfaces=(interface,),
        checks=find_checks(facts),
        causes=judge_causes(engine, fields),
        facts=dict(sorted(facts.items())),
    )


def _name_spelling(stored: set[str], engine: str) -> str:
    colon, underscore = (any(name.startswith(f"{engine}{mark}") for name in stored) for mark in ":_")
    return "both" if colon and underscore else "colon" if colon else "underscore"


def _round(seconds: float) -> float:
    return int(seconds) if seconds.is_integer() else round(seconds, 3)
