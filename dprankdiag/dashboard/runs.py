"""The bundles that a dashboard was started with, any two of which can be compared."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from dprankdiag.errors import InputError
from dprankdiag.model.comparison import Comparison
from dprankdiag.pipelines.compare import Input, compare


class SavedRuns:
    """Saved diagnoses with their tables; what was compared once is kept.

    Args:
        inputs: in the order in which they were named.
    """

    def __init__(self, inputs: Sequence[Input]) -> None:
        self.inputs = tuple(inputs)
        self._made: dict[tuple[int, int], Comparison | InputError] = {}
        self._lock = threading.Lock()

    def compare(self, before: int, after: int) -> Comparison:
        """Compare two of the bundles by their numbers.

        Raises:
            InputError: an older version saved one of them, without the tables that a comparison needs.
        """
        with self._lock:
            if (before, after) not in self._made:
                try:
                    self._made[before, after] = compare(self.inputs[before], self.inputs[after])
                except InputError as error:
                    self._made[before, after] = error
            made = self._made[before, after]
        if isinstance(made, InputError):
            raise made
        return made
