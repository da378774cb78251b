"""The metrics of a server with several workers: whichever is asked answers for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import swarmkeep
from swarmkeep.events.errors import LeaseLost, Overloaded, SeqConflict
from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent, RunEnded, RunResumed
from swarmkeep.events.records import read_count
from swarmkeep.events.state import Damage
from swarmkeep.store.records import SessionKey

# The types of ASGI: an application's three arguments are a plain dictionary and two functions.

Scope = dict[str, Any]
Message = dict[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]


async def wait_for_disconnect(receive: Callable[[], Awaitable[Mapping[str, Any]]]) -> None:
    """Return once the client is gone. Its request must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


log = logging.getLogger(__name__)

# One that stands still is left out.
_ANSWER_SECONDS = 1.0
_MAX_BYTES = 16_000_000


class WorkerMetrics:
    """One worker's place among those that share `folder`, where each answers on a socket named by its number."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._number = number

    @asynccontextmanager
    async def answer(self, render: Callable[[], bytes]) -> AsyncIterator[None]:
        """Answer the other workers with this one's metrics, for as long as the block lasts."""
        path = self._folder / str(self._number)
        # A worker that was killed has left its own.
        path.unlink(missing_ok=True)

        async def send(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError):
                writer.write(render())
                await writer.drain()
            writer.close()

        async with await asyncio.start_unix_server(send, path):
            yield

    async def combine(self, own: bytes) -> bytes:
        """Combine the counts of all workers, each with its number as a label."""
        numbers = [int(path.name) for path in self._folder.iterdir() if path.name != str(self._number)]
        answers = await asyncio.gather(*map(self._ask, numbers))
        texts = {number: text for number, text in zip(numbers, answers, strict=True) if text is not None}
        return await asyncio.to_thread(label_and_join, {self._number: own, **texts})

    async def _ask(self, number: int) -> bytes | None:
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(self._folder / str(number), limit=_MAX_BYTES)
                try:
                    return await reader.read()
                finally:
                    writer.close()
        except (OSError, TimeoutError) as error:
            log.debug("worker %d reports no metrics: %s", number, error)
            return None


def label_and_join(texts: Mapping[int, bytes]) -> bytes:
    """Texts of several workers as one, in which each line has its worker's number as the label `worker`.

    Not summed: when a worker is replaced, its counts start at zero; in a sum that would look like a reset of all.
    """
    families: dict[str, Metric] = {}
    for number, text in sorted(texts.items()):
        for family in text_string_to_metric_families(text.decode()):
            joined = families.setdefault(family.name, Metric(family.name, family.documentation, family.type))
            for sample in family.samples:
                joined.samples.append(sample._replace(labels={**sample.labels, "worker": str(number)}))
    return generate_latest(_Collected(list(families.values())))


class _Collected:
    """Metrics that have been collected already, as a registry gives them."""

    def __init__(self, families: list[Metric]) -> None:
        self._families = families

    def collect(self) -> list[Metric]:
        return self._families


# Prometheus metrics of one server. No label holds anything that callers choose.

_MODEL_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TOOL_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 10, 60, 300)
_APPEND_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
_OUTCOMES: dict[type[BaseException], str] = {SeqConflict: "conflict", LeaseLost: "lease_lost", Overloaded: "overloaded"}

M = TypeVar("M", Counter, Histogram)


def _find_by_labels(metric: M) -> Callable[..., M]:
    """The metric for some labels. The library makes texts of them and takes a lock each time, seven calls for each
    look; it keeps as many as this."""
    found: Callable[..., M] = functools.cache(metric.labels)
    return found


class Metrics:
    """One server's counts, in a registry of their own. They start from zero with the process.

    `token` is the secret that a reader has to show; without one they are open as long as the server is. `workers` are
    those that share the port with this one, and answer for one another.
    """

    def __init__(self, token: str | None = None, workers: WorkerMetrics | None = None) -> None:
        self.token = token
        self._workers = workers
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        GCCollector(registry=registry)
        info = Gauge("swarmkeep_info", "Which release this is; always 1.", ["version"], registry=registry)
        info.labels(swarmkeep.__version__).set(1)
        self._requests = _find_by_labels(
            Counter(
                "swarmkeep_http_requests",
                "HTTP answers that have begun.",
                ["method", "route", "status"],
                registry=registry,
            )
        )
        self._runs = _find_by_labels(
            Counter("swarmkeep_runs", "Runs, by what happened to them.", ["event"], registry=registry)
        )
        self._run_errors = _find_by_labels(
            Counter("swarmkeep_run_errors", "Why runs ended with an error.", ["code"], registry=registry)
        )
        self._damaged = Counter(
            "swarmkeep_sessions_damaged",
            "Sessions that were found here first not to be what was recorded, and set aside.",
            registry=registry,
        )
        self._takeovers = Counter("swarmkeep_takeovers", "Runs that recovery took over.", registry=registry)
        self._model_seconds = Histogram(
            "swarmkeep_model_call_seconds", "Model calls that gave a reply.", buckets=_MODEL_BUCKETS, registry=registry
        )
        self._tokens = _find_by_labels(
            Counter("swarmkeep_tokens", "Tokens as providers count them.", ["kind"], registry=registry)
        )
        self._tool_seconds = _find_by_labels(
            Histogram(
                "swarmkeep_tool_call_seconds",
                "Tool calls that have a result.",
                ["status"],
                buckets=_TOOL_BUCKETS,
                registry=registry,
            )
        )
        self._append_seconds = _find_by_labels(
            Histogram(
                "swarmkeep_append_seconds",
                "Appends to sessions, with the time that they waited for their turn.",
                ["outcome"],
                buckets=_APPEND_BUCKETS,
                registry=registry,
            )
        )

    def add_gauge(self, name: str, help_text: str, value: Callable[[], float]) -> None:
        """Show a value as it is at each reading."""
        Gauge(name, help_text, registry=self.registry).set_function(value)

    def observe_response(self, message: Message, scope: Scope) -> None:
        """Count an answer that begins."""
        if message["type"] == "http.response.start":
            route = scope.get("path_template") or "none"
            # Where there is no route, callers choose the method, too.
            method = str(scope.get("method")) if route != "none" else "any"
            self._requests(method, route, message["status"]).inc()

    def observe_damage(self, key: SessionKey, damage: Damage) -> None:
        """Count a session that was set aside."""
        self._damaged.inc()

    def observe_event(self, event: RecordedEvent) -> None:
        """Count what an event that this server has recorded tells."""
        fact = event.fact
        if isinstance(fact, MessageAdded) and fact.completion is None and fact.tool is None:
            # Nothing to count, and a run may begin with thousands.
            return
        kind, _, what = event.type.partition(".")
        if kind == "run":
            self._runs(what).inc()
        match fact:
            case MessageAdded(completion=completion) | CompactionSummarised(completion=completion) if (
                completion is not None and completion.request is not None
            ):
                self._model_seconds.observe(completion.duration_ms / 1000)
                for name in ("prompt_tokens", "completion_tokens"):
                    self._tokens(name.removesuffix("_tokens")).inc(read_count((completion.usage or {}).get(name)))
            case MessageAdded(tool=tool) if tool is not None:
                self._tool_seconds(tool.status).observe(tool.duration_ms / 1000)
            case RunResumed(reason="recovery"):
                self._takeovers.inc()
            case RunEnded(error=error) if error is not None:
                self._run_errors(error.code).inc()

    def observe_append(self, seconds: float, error: BaseException | None) -> None:
        """Count an append to a session, and the error that it ended with."""
        outcome = "ok" if error is None else _OUTCOMES.get(type(error), "error")
        self._append_seconds(outcome).observe(seconds)

    async def render(self) -> bytes:
        """All that the server counts, in Prometheus' text format."""
        own = self._render_own()
        return own if self._workers is None else await self._workers.combine(own)

    def answer_workers(self) -> AbstractAsyncContextManager[None]:
        """Answer the other workers with this one's metrics, for as long as the block lasts."""
        return nullcontext() if self._workers is None else self._workers.answer(self._render_own)

    def _render_own(self) -> bytes:
        return generate_latest(self.registry)


# Time limits for clients, and how soon the server reacts to what it can only look for.


class ServerLimits(msgspec.Struct, frozen=True, kw_only=True):
    """These are promised of every server, so there are no settings for them; tests pass smaller ones."""

    # Until a request's head has arrived, and then its body; a file may take longer, by its size.
    head_seconds: float = 30.0
    body_seconds: float = 60.0
    # Until a reader that takes nothing is disconnected, and what waits for all slow readers of a process together.
    stalled_seconds: float = 60.0
    unsent_bytes: int = 100_000_000
    # Of silence on a stream. Half of what is promised, because an idle stream looks at the clock only now and then.
    ping_seconds: float = 7.5
    # Until a stream notices that its session was deleted, which nothing else tells, or that its key was revoked.
    gone_seconds: float = 2.0
    # Between two checks of the key of a stream that stands still, and from a refusal until it is cut off.
    refused_seconds: float = 4.0
    # Until a replay stops and says how far it came, and how many of a tenant wait while one is made.
    replay_seconds: float = 60.0
    waiting_replays: int = 8
    # Of rebuilt requests and of items with files, from the reading of files until they are sent: one may have 50 MB.
    rebuilt_bytes: int = 320_000_000
    # Until a request that waits for a run begins to watch whether its client is still there.
    leaving_seconds: float = 1.0
    # Of a conversation that is not stored, on one WebSocket: its frames, files included, and the responses to them.
    unstored_bytes: int = 100_000_000
