"""The metrics of a server with several workers: whichever is asked answers for all of them."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, Metric, ProcessCollector
from prometheus_client.exposition import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import swarmkeep
from swarmkeep.events.errors import LeaseLost, Overloaded, SeqConflict
from swarmkeep.events.facts import CompactionSummarised, MessageAdded, RecordedEvent, RunEnded, RunResumed
from swarmkeep.events.records import read_count
from swarmkeep.events.state import Damage
from swarmkeep.store.feed import Consumer
from swarmkeep.store.records import SessionKey
from swarmkeep.store.webhooks import WebhookLag

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


# Prometheus metrics of one server. No label holds anything that callers choose, but for
# the names of consumers, which are few.

_MODEL_BUCKETS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 40, 80, 160)
_TOOL_BUCKETS = (0.01, 0.1, 0.5, 1, 5, 10, 60, 300)
_APPEND_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)
GAUGES = {
    "swarmkeep_sessions_driven": "Active runs of this server: sessions whose lease it has.",
    "swarmkeep_search_sessions_behind": "Sessions that searches do not yet find completely, counted up to 1,000.",
    "swarmkeep_stream_readers": "Open streams and WebSockets.",
    "swarmkeep_clock_ahead_seconds": (
        "By how much this machine's clock is ahead of the database's, measured once a minute; behind, if negative."
    ),
    "swarmkeep_writes_waiting": ("Writes that wait for the database; above 1,000, more are refused as `overloaded`."),
}
"""What each gauge shows that the parts of a server add."""
_OUTCOMES: dict[type[BaseException], str] = {SeqConflict: "conflict", LeaseLost: "lease_lost", Overloaded: "overloaded"}

_WEBHOOK_GAUGES = {
    "lag": "Rows of the feed of all events that a webhook has not come to.",
    "waiting": "Deliveries of a webhook that failed, or wait for such a one, and are tried again.",
    "dead": "Deliveries of a webhook that were given up.",
}


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
        info = Gauge("swarmkeep_info", "1, with the `version`.", ["version"], registry=registry)
        info.labels(swarmkeep.__version__).set(1)
        self._requests = self._count(
            "http_requests",
            "Answers, by `method`, `route` (a template; `none` where there is none) and `status`.",
            "method",
            "route",
            "status",
        )
        self._runs = self._count(
            "runs",
            "Changes of runs, by `event`: `started`, `queued`, `waiting`, `resumed`, `completed`, `failed`, "
            "`cancelled`, `interrupted`.",
            "event",
        )
        self._run_errors = self._count("run_errors", "Runs that ended with an error, by its `code`.", "code")
        self._damaged = self._count("sessions_damaged", "Sessions that this server was the first to find damaged.")
        self._takeovers = self._count("takeovers", "Runs that were taken over, or tried again.")
        self._model_seconds = self._time(
            "model_call_seconds", "Model calls that gave a reply, and how long they took.", _MODEL_BUCKETS
        )
        self._tokens = self._count(
            "tokens", "Tokens as providers count them, by `kind`: `prompt`, `completion`.", "kind"
        )
        self._tool_seconds = self._time(
            "tool_call_seconds",
            "Tool calls with a result, and how long they took, by `status`.",
            _TOOL_BUCKETS,
            "status",
        )
        self._feed_lag = Gauge(
            "swarmkeep_feed_lag",
            "Rows of the feed that a consumer has not confirmed, by `tenant` and `consumer`; up to 1,000 in all.",
            ["tenant", "consumer"],
            registry=registry,
        )
        self._webhook_attempts = self._count(
            "webhook_attempts",
            "Attempts to deliver an event to a webhook; after one that is `dead` no other comes by itself.",
            "outcome",
        )
        self._webhooks = {
            name: Gauge(f"swarmkeep_webhook_{name}", help_text, ["tenant", "webhook"], registry=registry)
            for name, help_text in _WEBHOOK_GAUGES.items()
        }
        self._append_seconds = self._time(
            "append_seconds",
            "Appends, and how long they took including waiting, by `outcome`: `ok`, `conflict` (decided again), "
            "`lease_lost`, `overloaded`, `error`.",
            _APPEND_BUCKETS,
            "outcome",
        )

    # What the library makes of labels is kept: it makes texts of them and takes a lock each time, seven calls for each
    # look.

    def _count(self, name: str, text: str, *labels: str) -> Callable[..., Counter]:
        counter = Counter(f"swarmkeep_{name}", text, labels, registry=self.registry)
        return functools.cache(counter.labels if labels else lambda: counter)

    def _time(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Callable[..., Histogram]:
        histogram = Histogram(f"swarmkeep_{name}", text, labels, buckets=buckets, registry=self.registry)
        return functools.cache(histogram.labels if labels else lambda: histogram)

    def show_lags(self, consumers: Iterable[Consumer]) -> None:
        """Show how far the consumers of feeds are behind. There are as many as a tenant may have, in all."""
        self._feed_lag.clear()
        for one in consumers:
            self._feed_lag.labels(one.tenant, one.name).set(one.lag)

    def show_webhooks(self, lags: Iterable[WebhookLag]) -> None:
        """Show how far webhooks are behind, up to a thousand of them."""
        for gauge in self._webhooks.values():
            gauge.clear()
        for one in lags:
            for name, gauge in self._webhooks.items():
                gauge.labels(one.tenant, one.id).set(getattr(one, name))

    def observe_webhook(self, outcome: str) -> None:
        """Count an attempt to deliver an event."""
        self._webhook_attempts(outcome).inc()

    def add_gauge(self, name: str, value: Callable[[], float]) -> None:
        """Show a value, one of `GAUGES`, as it is at each reading."""
        Gauge(name, GAUGES[name], registry=self.registry).set_function(value)

    def observe_response(self, message: Message, scope: Scope) -> None:
        """Count an answer that begins."""
        if message["type"] == "http.response.start":
            route = scope.get("path_template") or "none"
            # Where there is no route, callers choose the method, too.
            method = str(scope.get("method")) if route != "none" else "any"
            self._requests(method, route, message["status"]).inc()

    def observe_damage(self, key: SessionKey, damage: Damage) -> None:
        """Count a session that was set aside."""
        self._damaged().inc()

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
                self._model_seconds().observe(completion.duration_ms / 1000)
                for name in ("prompt_tokens", "completion_tokens"):
                    self._tokens(name.removesuffix("_tokens")).inc(read_count((completion.usage or {}).get(name)))
            case MessageAdded(tool=tool) if tool is not None:
                self._tool_seconds(tool.status).observe(tool.duration_ms / 1000)
            case RunResumed(reason="recovery"):
                self._takeovers().inc()
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
