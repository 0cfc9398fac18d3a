"""Keep what becomes of a request on the rank that serves it."""

from __future__ import annotations

from dataclasses import dataclass, field

from dprankdiag.simulate.base import Part, Request
from dprankdiag.simulate.prefix_cache import Node


@dataclass(slots=True, eq=False)
class Job:
    """A request being served; the schedulers change it.

    A prompt's last step yields the first token. Thereafter the KV of all tokens but the newest is held.

    Attributes:
        prompt_tokens: of the request.
        worker, rank: where it is.
        placed_ns: when it was given to the rank.
        uncached_tokens: what was still to compute of its prompt when it was queued.
        generated: output tokens so far.
        computed: tokens of the prompt (and of what is recomputed after it) whose KV is held, cached ones included.
        cached_tokens: found in the prefix cache when it was first admitted; None before.
        computed_tokens: prompt tokens that steps computed for it, those after retractions too.
        retractions: how often it lost its place.
        order: counts admissions of its rank, of which this was its latest.
        node: the deepest node of the prefix cache that it holds.
        shared_pages: pages of that node and those above it that it reads.
        base: its length less the clock of the running batch.
        mark: where that clock stands when it ends.
        expected: where the clock is expected to stand by what the client asks for.
        first_ns, end_ns: when the first and the last token came; None before.
        refused: it could never fit the pool.
    """

    request: Request
    prompt_tokens: int
    worker: int = 0
    rank: int = 0
    placed_ns: int = 0
    uncached_tokens: int = 0
    generated: int = 0
    computed: int = 0
    cached_tokens: int | None = None
    computed_tokens: int = 0
    retractions: int = 0
    order: int = 0
    node: Node | None = None
    shared_pages: int = 0
    base: int = 0
    mark: int = 0
    expected: int = 0
    first_ns: int | None = None
    end_ns: int | None = None
    refused: bool = False
    decode: Job | None = field(default=None, repr=False)
    """The same request on the engine that decodes it, where prompts are computed elsewhere."""
    reserved_ns: int | None = None
    """When that engine had room for its KV."""
    transferred_ns: int | None = None
    """When its KV has arrived there."""

    @property
    def recomputed_tokens(self) -> int:
        """Count the tokens computed for it beyond its prompt, less what was cached."""
        if self.cached_tokens is None:
            return 0
        return max(self.computed_tokens - (self.prompt_tokens - self.cached_tokens), 0)

    @property
    def target(self) -> int:
        """Count the tokens whose KV must be held before it can decode."""
        return self.prompt_tokens + self.generated

    @property
    def answered_parts(self) -> tuple[Part, ...]:
        """Give the prompt and the output but its last token, whose KV is held at the end."""
        key, tokens = self.request.output_key, self.request.output_tokens - 1
        return self.request.parts if key is None else (*self.request.parts, Part(key, tokens))
