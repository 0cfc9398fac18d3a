"""Read a span of what Prometheus servers store of engines, as inputs of a diagnosis."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from dprankdiag.collectors.base import Collector
from dprankdiag.collectors.http import Access, Fetcher
from dprankdiag.collectors.prometheus_api import PrometheusApi
from dprankdiag.collectors.prometheus_select import Matcher
from dprankdiag.collectors.sglang_loads import SglangLoads
from dprankdiag.collectors.sglang_metrics import SglangMetrics
from dprankdiag.collectors.vllm_metrics import VllmMetrics
from dprankdiag.errors import InputError
from dprankdiag.model.ledgers import LedgerFile, NoData
from dprankdiag.model.sources import Source
from dprankdiag.pipelines.device_reading import read_devices
from dprankdiag.pipelines.failures import find_base
from dprankdiag.pipelines.live import arrange
from dprankdiag.pipelines.sources import PROMETHEUS, check_server
from dprankdiag.pipelines.stored import Span, SpanRead, StoredEngines

if TYPE_CHECKING:
    import httpx

Progress = Callable[[str, float | None], None]

FEWEST_MOMENTS = 2


@dataclass(frozen=True, slots=True)
class StoredQuestion:
    """Which servers to ask for what.

    Attributes:
        targets: addresses, each beginning with `prometheus+`.
        matchers: conditions on labels.
    """

    targets: tuple[str, ...]
    span: Span = field(default_factory=Span)
    matchers: tuple[Matcher, ...] = ()


def read_servers(
    question: StoredQuestion,
    access: Access | None = None,
    progress: Progress | None = None,
    *,
    transport: httpx.BaseTransport | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> tuple[LedgerFile, ...]:
    """Read what servers store of engines in a span, one input a server.

    Args:
        transport: stands in for the network.
        clock: UTC epoch ns.

    Raises:
        UsageError: a target is no address.
        InputError: a server cannot be asked, or holds nothing of an engine in that span.
    """
    bases = [(target, check_server(target)) for target in question.targets]
    with closing(Fetcher(access, transport=transport, clock=clock)) as fetcher:
        return tuple(_read_server(target, base, question, fetcher, progress, clock) for target, base in bases)


def _read_server(
    target: str,
    base: str,
    question: StoredQuestion,
    fetcher: Fetcher,
    progress: Progress | None,
    clock: Callable[[], int],
) -> LedgerFile:
    readers: dict[str, Collector] = {"sglang": SglangMetrics(), "sglang-loads": SglangLoads(), "vllm": VllmMetrics()}
    server = StoredEngines(base, fetcher, readers, question.matchers, clock=clock)
    path = f"{PROMETHEUS}{server.where}"
    read = server.read_span(question.span, lambda share: progress(f"ask {path}", share) if progress else None)
    if isinstance(read, NoData):
        raise InputError(read.reason, where=path, mend=_mend(read.reason))
    if not read.answers:
        raise _tell_nothing(path, read, question)
    arranged, homes, notes = arrange(read.answers)
    source = Source(
        path,
        PrometheusApi.interface,
        "partial" if read.failed else "used",
        producer=", ".join(sorted({answer.engine for answer in read.answers})),
        ranks=tuple(sorted({rank for answer in read.answers for rank in answer.ranks})),
        warnings=(*_list_warnings(read), *notes),
    )
    told = tuple(replace(answer, where=path, warnings=()) for answer in arranged)
    places = tuple(homes[find_base(answer)] for answer in arranged)
    devices = read_devices(server, read.start_s, read.end_s)
    return LedgerFile(source, told, path, gaps=read.failed, places=places, devices=devices)


def _mend(reason: str) -> str:
    if "HTTP 404" in reason or "expected an answer" in reason:
        return "give the address of a Prometheus, with the path under which it answers /api/v1/query, if there is one"
    if "time" in reason or "took longer" in reason:
        return "give it longer with --timeout, or ask for less with --since"
    return ""


def _tell_nothing(path: str, read: SpanRead, question: StoredQuestion) -> InputError:
    if read.failed:
        return InputError(read.failed[0].reason, where=path, mend=_mend(read.failed[0].reason))
    span = " to ".join(_write_moment(at_s) for at_s in (read.start_s, read.end_s))
    chosen = " with these labels" if question.matchers else ""
    mend = f"see what it stores: dprankdiag doctor {path}"
    return InputError(f"holds no series of an engine{chosen} from {span}", where=path, mend=mend)


def _write_moment(at_s: float) -> str:
    return datetime.fromtimestamp(at_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _list_warnings(read: SpanRead) -> Iterator[str]:
    yield from dict.fromkeys(text for answer in read.answers for text in answer.warnings)
    if read.failed:
        yield f"{len(read.failed)} questions got no answer, the last one: {read.failed[-1].reason}"
    if read.scrape_s is not None and read.step_s > 1.5 * read.scrape_s:
        yield (
            f"one moment in {read.step_s:g} s was read, of scrapes every {read.scrape_s:g} s: "
            "what lasts less is not seen; a shorter --since reads them all"
        )
