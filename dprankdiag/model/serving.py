"""What serves: the engine and its release, as far as an input shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ServingEngine = Literal["sglang", "vllm"]


@dataclass(frozen=True, slots=True)
class Serving:
    """An engine; None where nothing shows which it is or of which release."""

    engine: ServingEngine | None = None
    release: str | None = None


UNKNOWN_SERVING = Serving()
