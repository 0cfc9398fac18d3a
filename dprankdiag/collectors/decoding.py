"""Decode the bodies that several interfaces share: JSON, and moments written in it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec

from dprankdiag.errors import DamagedInput


def decode_json(body: bytes, where: str) -> Any:
    """Decode JSON.

    Raises:
        DamagedInput: it is none, or cut short.
    """
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise DamagedInput(f"expected JSON: {error}", where=where) from error


def read_stamp_ns(stamp: Any) -> int | None:
    """Read an ISO-8601 moment as UTC epoch ns; None if it is none."""
    if not isinstance(stamp, str):
        return None
    try:
        moment = datetime.fromisoformat(stamp)
    except ValueError:
        return None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (since.days * 86_400 + since.seconds) * 1_000_000_000 + since.microseconds * 1_000
