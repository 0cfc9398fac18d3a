"""What several rooms' tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def fixtures() -> Path:
    """Folder of recordings that are not part of this project; the test is skipped where it is absent."""
    folder = Path(os.environ.get("DPRANKDIAG_FIXTURES", ROOT.parent / "shared" / "fixtures"))
    if not folder.is_dir():
        pytest.skip("no folder of outside recordings; name one in DPRANKDIAG_FIXTURES")
    return folder


@pytest.fixture(scope="session")
def payloads() -> Path:
    """Folder of the recordings that belong to this project."""
    return ROOT / "tests" / "payloads"
