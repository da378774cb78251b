"""Prometheus metrics of one server. No label holds anything that callers choose."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, GCCollector, Histogram, ProcessCollector
from prometheus_client.exposition import generate_latest

import swarmkeep
from swarmkeep.api.access.asgi import Message, Scope
from swarmkeep.domain.envelope import RecordedEvent
from swarmkeep.domain.errors import LeaseLost, Overloaded, SeqConflict
from swarmkeep.domain.events import MessageAdded, RunEnded, RunResumed
from swarmkeep.domain.facts.compaction import CompactionSummarised
from swarmkeep.domain.facts.records import read_count
from swarmkeep.domain.state import Damage
from swarmkeep.processes.metrics import WorkerMetrics
from swarmkeep.store.ports import SessionKey

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
    """One server's counts, in a registry of their own. They begin anew with the process.

    `token` is what whoever reads them has to show; without one they are open as long as the server is. `workers` are
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
        """Show a value as it is when somebody looks."""
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
