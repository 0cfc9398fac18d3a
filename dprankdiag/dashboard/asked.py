"""What a load would be under other policies: asked when somebody looks, and once."""

from __future__ import annotations

import threading
from collections.abc import Callable

from dprankdiag.errors import DprankdiagError
from dprankdiag.model.whatif import WhatIf


class Asked:
    """A what-if that takes some time to work out.

    Args:
        ask: works it out.
    """

    def __init__(self, ask: Callable[[], WhatIf]) -> None:
        self._ask = ask
        self._told: WhatIf | DprankdiagError | None = None
        self._lock = threading.Lock()

    def get(self) -> WhatIf:
        """Return it.

        Raises:
            DprankdiagError: there is none, as its words say.
        """
        with self._lock:
            if self._told is None:
                try:
                    self._told = self._ask()
                except DprankdiagError as error:
                    self._told = error
            told = self._told
        if isinstance(told, DprankdiagError):
            raise told
        return told
