"""Look up the texts that ids in an export point to; only those asked for, since StringIds also holds secrets."""

from __future__ import annotations

from collections.abc import Iterable

from dprankdiag.readers.nsys_export import NsysExport, OneOf


def fetch_texts(db: NsysExport, ids: Iterable[int]) -> dict[int, str]:
    """Return the text of every id asked for; an id that the file lacks reads ``#id``.

    A text ends at its first NUL: what follows one is never a name (whole environments are stored NUL-joined).
    """
    wanted = set(ids)
    texts = {number: f"#{number}" for number in wanted}
    if not wanted:
        return texts
    for number, value in db.rows("StringIds", ("id", "value"), OneOf("id", tuple(sorted(wanted)))):
        if value is not None:
            texts[number] = str(value).split("\0", 1)[0]
    return texts
