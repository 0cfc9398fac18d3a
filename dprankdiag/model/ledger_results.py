"""The small tables of a bundle that a ledger leaves: what each rank told over the window judged, and over time."""

from __future__ import annotations

from dprankdiag.model.schema import Column, Table

LEDGER_RANKS = Table(
    "ledger_ranks",
    "one rank as its ledger shows it; numbers that are not told are NaN",
    (
        Column("engine", "object", "name", "engine as in the diagnosis; unique together with rank"),
        Column("rank", "int32", "id", "DP rank"),
        Column("running_requests", "float64", "count", "requests in the running batch"),
        Column("waiting_requests", "float64", "count", "requests in its queues"),
        Column("held_tokens", "float64", "tokens", "KV tokens held"),
        Column("kv_usage_ratio", "float64", "ratio", "share of the KV pool in use"),
        Column("attention_pairs", "float64", "count", "query-key pairs over the window"),
        Column("computed_prompt_tokens", "float64", "tokens", "prompt tokens computed over the window"),
        Column("cache_hit_ratio", "float64", "ratio", "share of prompt tokens found in the prefix cache"),
        Column("accepted_tokens", "float64", "tokens", "tokens a request gets from a step of speculative decoding"),
        Column("idle_share_ratio", "float64", "ratio", "share of the steps without work of its own"),
        Column("border_wait_ns", "float64", "ns", "mean wait at the border of a step"),
        Column("step_time_ns", "float64", "ns", "mean time of a decode step or between tokens"),
        Column("retracted_requests", "float64", "count", "requests taken out of the batch over the window"),
        Column("snapshot_age_ns", "float64", "ns", "age of its load snapshot against the freshest of any rank"),
    ),
)

LEDGER_HISTORY = Table(
    "ledger_history",
    "one rank at one moment of a running engine, each over the window that ends then; numbers not told are NaN",
    (
        Column("engine", "object", "name", "engine as in the diagnosis; unique together with rank"),
        Column("rank", "int32", "id", "DP rank"),
        Column("at_ns", "int64", "ns", "end of the window, UTC epoch"),
        Column("border_wait_ns", "float64", "ns", "mean wait at the border of a step"),
        Column("step_time_ns", "float64", "ns", "mean time of a decode step or between tokens"),
        Column("attention_pairs", "float64", "count", "query-key pairs over the window"),
        Column("held_tokens", "float64", "tokens", "KV tokens held"),
        Column("running_requests", "float64", "count", "requests in the running batch"),
    ),
)

LEDGER_TABLES = (LEDGER_RANKS, LEDGER_HISTORY)
