"""Style and script that pages share."""

from __future__ import annotations

from importlib import resources


def read_asset(name: str) -> str:
    """Read a file that lies beside this one."""
    return resources.files(__name__).joinpath(name).read_text("utf-8")
