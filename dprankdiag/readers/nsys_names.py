"""Look up the texts that ids in an export point to; only those asked for, since StringIds also holds secrets."""

from __future__ import annotations

from collections.abc import Iterable

from dprankdiag.readers.nsys_database import NsysDatabase

_IDS_PER_QUERY = 500


def fetch_texts(db: NsysDatabase, ids: Iterable[int]) -> dict[int, str]:
    """Return the text of every id asked for; an id that the file lacks reads ``#id``.

    A text ends at its first NUL: what follows one is never a name (whole environments are stored NUL-joined).
    """
    wanted = set(ids)
    texts = {number: f"#{number}" for number in wanted}
    facts = db.columns.get("StringIds", {})
    if not wanted or "id" not in facts or "value" not in facts:
        return texts
    for tail in _choose_tails(wanted, facts["id"].is_key):
        for number, value in db.rows("StringIds", ("id", "value"), tail):
            if number in wanted and value is not None:
                texts[number] = str(value).split("\0", 1)[0]
    return texts


def _choose_tails(wanted: set[int], is_key: bool) -> list[str]:
    """Look ids up by key where there is one; else one scan beats many."""
    if not is_key and len(wanted) > _IDS_PER_QUERY:
        return [""]
    ordered = sorted(wanted)
    groups = [ordered[start : start + _IDS_PER_QUERY] for start in range(0, len(ordered), _IDS_PER_QUERY)]
    return [f"WHERE id IN ({', '.join(map(str, group))})" for group in groups]
