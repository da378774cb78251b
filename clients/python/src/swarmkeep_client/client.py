# Made from async_client.py by make_sync.py: change that one, then `make client`.
"""The client: where sessions are made and found."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from functools import partial
from typing import BinaryIO, Literal, Self

import httpx2

from swarmkeep_client import _calls as calls
from swarmkeep_client._calls import Included, MetadataValue, SessionOrder
from swarmkeep_client._sender import Sender
from swarmkeep_client._settings import READ_TIMEOUT_SECONDS, STREAM_IDLE_SECONDS, make_settings
from swarmkeep_client._streams import ChangeStream, FeedStream
from swarmkeep_client.keys import ApiKey, Caller, CreatedKey
from swarmkeep_client.models import (
    ActiveRun,
    ActiveStatus,
    AgentInfo,
    AuditEntry,
    Checkpoint,
    Consumer,
    DueSession,
    Erasure,
    FeedEvent,
    FeedPage,
    Head,
    Health,
    ImportReport,
    Json,
    Leaf,
    Message,
    Prices,
    Quotas,
    Role,
    SessionChanges,
    SessionCounts,
    UsageGroup,
    UsageRow,
    Verification,
)
from swarmkeep_client.run_table import EndedRun, EndedRunStatus, RunFigures, RunGroup, RunSort
from swarmkeep_client.session import Session
from swarmkeep_client.webhooks import Webhook, WebhookDelivery, WebhookTest, WebhookWithSecret


class Client:
    """A Swarmkeep server. Threads may share one; close it, or use it in a `with` block.

    `base_url` and `api_key` default to SWARMKEEP_URL (or http://127.0.0.1:8000) and SWARMKEEP_API_KEY. `timeout` is
    how many seconds an answer may take, which for a run is all of its model and tool calls; connecting may take 5.
    A stream reconnects when nothing at all came for `stream_idle_seconds`. What is safe to repeat is sent again
    up to `max_retries` times. `transport` and `sleep` are for tests and for unusual networks.

    Raises ValueError for settings that cannot be right.
    """

    def __init__(
        self,
        base_url: str | None = None,
        *,
        api_key: str | None = None,
        timeout: float | httpx2.Timeout | None = READ_TIMEOUT_SECONDS,
        stream_idle_seconds: float = STREAM_IDLE_SECONDS,
        max_retries: int = 3,
        transport: httpx2.BaseTransport | None = None,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        checked = make_settings(
            base_url, api_key, timeout=timeout, stream_idle_seconds=stream_idle_seconds, max_retries=max_retries
        )
        self._sender = Sender(checked, transport=transport, sleep=sleep)
        self.sessions = Sessions(self._sender)
        self.runs = Runs(self._sender)
        self.agents = Agents(self._sender)
        self.feed = Feed(self._sender)
        self.webhooks = Webhooks(self._sender)
        self.audit = Audit(self._sender)
        self.keys = Keys(self._sender)

    @property
    def base_url(self) -> str:
        return self._sender.settings.base_url

    def health(self) -> Health:
        """Ask whether the server takes requests; if it does not, the answer says so and nothing is raised."""
        return self._sender.perform(calls.get_health())

    def export(
        self,
        ids: str | Sequence[str] | None = None,
        *,
        agent: str | None = None,
        status: str | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> Generator[bytes, None]:
        """Sessions as a file that leaves nothing out, piece by piece: those with these ids, or all by these filters.

        A session that the server's archive does not give back has a line that says so (`"record": "missing"`); the
        export of only that one raises HistoryDamaged. Raises SessionNotFound, and ConnectionFailed if it breaks off:
        what has come cannot be imported then.
        """
        return self._sender.download(calls.export_sessions(ids, agent=agent, status=status, metadata=metadata))

    def evidence(self, ids: str | Sequence[str], *, size: int | None = None) -> Generator[bytes, None]:
        """Sessions as a ZIP file that a stranger can check with nothing but Python, piece by piece.

        With `size` they are proven from the log's checkpoint of so many leaves. Raises SessionNotFound, HistoryDamaged
        for one that does not verify, TooLarge, CheckpointNotFound, NotInCheckpoint, and ConnectionFailed if it breaks
        off.
        """
        return self._sender.download(calls.make_evidence(ids, size=size))

    def import_sessions(
        self,
        file: bytes | BinaryIO,
        *,
        source: calls.FileFormat = "export",
        agent: str | None = None,
        as_id: str | None = None,
        dry_run: bool = False,
    ) -> ImportReport:
        """Record the sessions of a file, if all of it proves to be sound; those that are there are left alone.

        `file` is its bytes, or a file opened in binary mode. `source` says what it is: an export, or conversations
        that were kept elsewhere; of those, `agent` is to go on. With `auto` the server recognises it. `as_id` is an id
        for the one session in it. `dry_run` verifies and checks only.

        Raises InvalidImport, which names the line, and SessionExists; nothing was recorded then.
        """
        return self._sender.perform(
            calls.import_sessions(file, source=source, agent=agent, as_id=as_id, dry_run=dry_run)
        )

    def usage(
        self,
        group_by: UsageGroup | Sequence[UsageGroup] = (),
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        session: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[UsageRow]:
        """Sum up model and tool calls, a row for each group; without groups, one row for all.

        Days are `YYYY-MM-DD`, in UTC, both included. Rows are fetched page by page as they are needed.
        """
        return self._sender.iterate_pages(
            calls.get_usage(
                group_by=group_by,
                first_day=first_day,
                last_day=last_day,
                agent=agent,
                model=model,
                session=session,
                page_size=page_size,
            )
        )

    def active_runs(self, status: ActiveStatus = "running", *, page_size: int | None = None) -> Iterator[ActiveRun]:
        """The active runs of all sessions, or those that wait for a person or a program; fetched page by page."""
        return self._sender.iterate_pages(calls.list_active_runs(status=status, page_size=page_size))

    def me(self) -> Caller:
        """Fetch the key, tenant and role that the server sees in this client."""
        return self._sender.perform(calls.get_caller())

    def prices(self) -> Prices:
        """Fetch the prices of models in the server's settings, by which each `cost` is computed."""
        return self._sender.perform(calls.get_prices())

    def erase_person(self, person: str | int | float | bool, reason: str, *, dry_run: bool = False) -> Erasure:
        """Redact all events of a person's sessions, and erase the key that encrypts them in every copy, for good.

        `person` is what metadata call the person. With `dry_run` only say which sessions there are. Raises
        PersonNotFound, and OnHold or SessionBusy if one of them cannot be redacted: then the key stays.
        """
        return self._sender.perform(calls.erase_person(person, reason, dry_run=dry_run))

    def quotas(self) -> Quotas:
        """Fetch the quotas of the key's tenant, and how much of them is used."""
        return self._sender.perform(calls.get_quotas())

    def close(self) -> None:
        """Close every connection."""
        self._sender.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.base_url}>"


class Sessions:
    """The server's sessions, as far as the key may see them."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def create(
        self,
        *,
        agent: str | None = None,
        context_variables: Json | None = None,
        metadata: Json | None = None,
        id: str | None = None,
        messages: Sequence[Message] | None = None,
        idempotency_key: str | None = None,
    ) -> Session:
        """Make a session, or get the one that was made with the same `id` and the same arguments.

        `agent` defaults to the server's first one. `messages` imports a history.

        Raises SessionExists when `id` belongs to another session, and AgentNotFound.
        """
        call = calls.create_session(
            id=id,
            agent=agent,
            context_variables=context_variables,
            metadata=metadata,
            messages=messages,
            idempotency_key=idempotency_key,
        )
        return Session(self._sender, self._sender.perform(call))

    def get(self, session_id: str) -> Session:
        """The session with that id, to continue it. Raises SessionNotFound."""
        return Session(self._sender, self._sender.perform(calls.get_session(session_id)))

    def list(
        self,
        *,
        agent: str | None = None,
        status: str | None = None,
        last_run: EndedRunStatus | None = None,
        order: SessionOrder | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        include: Included | None = None,
        children: bool = False,
        q: str | None = None,
        active_after: str | None = None,
        active_before: str | None = None,
        damaged: bool | None = None,
        assignee: str | None = None,
        feedback: Literal["up", "down"] | None = None,
        page_size: int | None = None,
    ) -> Iterator[Session]:
        """Sessions, newest first, fetched page by page as they are needed. `metadata` names keys and their values.

        `order="activity"`: those first in which something happened last, `order="oldest_activity"`: those last, such as
        those that wait for longest (`status="waiting"`). `last_run` is how the last run ended. They have
        `context_variables` if `include` asks for them. With `children` also those that agents began to ask others.
        `active_after` and `active_before` are times (RFC 3339), of what happened last. `q`: words, of which one
        message, or id and metadata, have to begin words with all; `matches` say where. `damaged`: only those that were
        set aside, or with False the others. `assignee`: only those that this person or queue looks after, or with
        "none" those without one. `feedback`: "down" for those with an answer that people did not find good, "up" for
        others with feedback. Raises SearchOff.
        """
        call = calls.list_sessions(
            agent=agent,
            status=status,
            last_run=last_run,
            order=order,
            metadata=metadata,
            include=include,
            children=children,
            q=q,
            active_after=active_after,
            active_before=active_before,
            damaged=damaged,
            assignee=assignee,
            feedback=feedback,
            page_size=page_size,
        )
        return (Session(self._sender, state) for state in self._sender.iterate_pages(call))

    def due(self, *, before: datetime | str | None = None, page_size: int | None = None) -> Iterator[DueSession]:
        """The sessions that the server's retention deletes before a time, by default those that are due."""
        return self._sender.iterate_pages(calls.list_due(before=before, page_size=page_size))

    def counts(self, *, children: bool = False) -> SessionCounts:
        """Count busy sessions, and those whose last run ended badly; of each kind up to 1,000."""
        return self._sender.perform(calls.get_counts(children=children))

    def follow(self) -> Generator[SessionChanges, None]:
        """Follow the sessions that change: ids and states, to keep a list up to date. Does not end by itself.

        The first item, and the first after a connection that broke, has `more`: the list is to be read.
        """
        return self._sender.stream(ChangeStream(self._sender.new_retries(), after=None))


class Runs:
    """The table of runs that are over, of all sessions that the key may see."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def list(
        self,
        *,
        session: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        status: EndedRunStatus | None = None,
        stop_reason: str | None = None,
        error: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        sort: RunSort | None = None,
        page_size: int | None = None,
    ) -> Iterator[EndedRun]:
        """Runs that are over, the latest first, or with `sort` those with the greatest figure. Fetched page by page.

        `error` is the code that they failed with. `created_after` and `created_before` are times (RFC 3339) of their
        beginning. `first_token_ms` sorts only runs that were streamed.
        """
        call = calls.list_ended_runs(
            session=session,
            agent=agent,
            model=model,
            status=status,
            stop_reason=stop_reason,
            error=error,
            created_after=created_after,
            created_before=created_before,
            sort=sort,
            page_size=page_size,
        )
        return self._sender.iterate_pages(call)

    def export(
        self,
        form: Literal["csv", "jsonl"] = "csv",
        *,
        session: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        status: EndedRunStatus | None = None,
        stop_reason: str | None = None,
        error: str | None = None,
        created_after: str | None = None,
        created_before: str | None = None,
        sort: RunSort | None = None,
    ) -> Generator[bytes, None]:
        """The same runs as a file of CSV or JSON lines, piece by piece. Raises ConnectionFailed if it breaks off."""
        request = calls.export_runs(
            form,
            session=session,
            agent=agent,
            model=model,
            status=status,
            stop_reason=stop_reason,
            error=error,
            created_after=created_after,
            created_before=created_before,
            sort=sort,
        )
        return self._sender.download(request)

    def figures(
        self,
        group_by: RunGroup | Sequence[RunGroup] = (),
        *,
        first_day: str | None = None,
        last_day: str | None = None,
        session: str | None = None,
        agent: str | None = None,
        model: str | None = None,
        status: EndedRunStatus | None = None,
        stop_reason: str | None = None,
        error: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[RunFigures]:
        """Count runs, with percentiles of how long they took: a row for each group; without groups, one row for all.

        Days are `YYYY-MM-DD`, in UTC, both included; by default the last 7, and at most 92.
        """
        call = calls.get_run_figures(
            group_by=group_by,
            first_day=first_day,
            last_day=last_day,
            session=session,
            agent=agent,
            model=model,
            status=status,
            stop_reason=stop_reason,
            error=error,
            page_size=page_size,
        )
        return self._sender.iterate_pages(call)


class Agents:
    """The agents that the server has."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def list(self) -> list[AgentInfo]:
        """Every agent."""
        return [agent for agent in self._sender.iterate_pages(calls.list_agents())]

    def get(self, name: str) -> AgentInfo:
        """The agent of that name. Raises AgentNotFound."""
        return self._sender.perform(calls.get_agent(name))


class Feed:
    """The events of all sessions that the key may see, in one order that never changes."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def events(
        self,
        *,
        after: str | None = None,
        consumer: str | None = None,
        type: str | Sequence[str] | None = None,
        agent: str | Sequence[str] | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        page_size: int | None = None,
    ) -> Generator[FeedEvent, None]:
        """The events recorded so far behind the cursor `after`, or behind the place that is kept as `consumer`: by
        default all. Fetched page by page as they are needed.

        `type`, `agent` and `metadata` select some: `metadata` is what their sessions have now.
        """
        pages = self.pages(
            after=after, consumer=consumer, type=type, agent=agent, metadata=metadata, page_size=page_size
        )
        with closing(pages):
            for page in pages:
                for event in page.data:
                    yield event

    def pages(
        self,
        *,
        after: str | None = None,
        consumer: str | None = None,
        type: str | Sequence[str] | None = None,
        agent: str | Sequence[str] | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
        page_size: int | None = None,
    ) -> Generator[FeedPage, None]:
        """The same, page by page. `next_cursor` is also behind the events that are not wanted: a reader that confirms
        it does not have them looked through again. A page may have no events.
        """
        read = partial(calls.read_feed, type=type, agent=agent, metadata=metadata, page_size=page_size)
        page = self._sender.perform(read(after=after, consumer=consumer))
        while page.data or page.next_cursor != after:
            yield page
            after = page.next_cursor
            page = self._sender.perform(read(after=after, consumer=None))

    def follow(
        self,
        *,
        after: str | None = None,
        consumer: str | None = None,
        type: str | Sequence[str] | None = None,
        agent: str | Sequence[str] | None = None,
        metadata: Mapping[str, MetadataValue] | None = None,
    ) -> Generator[FeedEvent, None]:
        """Like `events`, and then each new one as it is recorded: does not end by itself, and reconnects. `after="end"`
        begins with what is recorded from now on.
        """
        read = partial(calls.read_feed, type=type, agent=agent, metadata=metadata)
        if after == "end":
            # A connection that breaks before the first event would begin at a later end.
            after = (self._sender.perform(read(after=after, consumer=None))).next_cursor
        start = read(after=after, consumer=consumer).request
        with closing(self._sender.stream(FeedStream(start, self._sender.new_retries()))) as events:
            for event in events:
                yield event

    def consumers(self) -> Sequence[Consumer]:
        """The places that are kept by name, and how much each has left to read."""
        return (self._sender.perform(calls.list_consumers())).data

    def consumer(self, name: str) -> Consumer:
        """The place that is kept by this name. Raises ConsumerNotFound."""
        return self._sender.perform(calls.get_consumer(name))

    def confirm(self, name: str, cursor: str) -> Consumer:
        """Keep a place by a name, which its first place makes: whoever goes on as this `consumer` begins behind it."""
        return self._sender.perform(calls.move_consumer(name, cursor))

    def forget(self, name: str) -> None:
        """Keep no place by this name any more. Raises ConsumerNotFound."""
        self._sender.perform(calls.delete_consumer(name))


class Webhooks:
    """The addresses that events are sent to, for keys with the role `admin`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def list(self) -> Sequence[Webhook]:
        """All webhooks of the key's tenant, oldest first."""
        return (self._sender.perform(calls.list_webhooks())).data

    def create(
        self,
        url: str,
        *,
        types: Sequence[str] | None = None,
        agents: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        after: str | None = None,
        idempotency_key: str | None = None,
    ) -> WebhookWithSecret:
        """Have events sent to an address, those behind the cursor `after`, by default from now on. `types`, `agents`
        and `metadata` choose some. Keep the `secret`, which verifies their signatures."""
        given = {"types": types, "agents": agents, "metadata": metadata, "after": after}
        return self._sender.perform(calls.create_webhook(url, given, idempotency_key=idempotency_key))

    def get(self, webhook_id: str) -> Webhook:
        """Raises WebhookNotFound."""
        return self._sender.perform(calls.get_webhook(webhook_id))

    def update(
        self,
        webhook_id: str,
        *,
        url: str | None = None,
        types: Sequence[str] | None = None,
        agents: Sequence[str] | None = None,
        metadata: Mapping[str, str] | None = None,
        state: Literal["enabled", "paused"] | None = None,
    ) -> Webhook:
        """Change what is given; an empty list stands for all. Raises WebhookNotFound."""
        given = {"url": url, "types": types, "agents": agents, "metadata": metadata, "state": state}
        return self._sender.perform(calls.update_webhook(webhook_id, given))

    def delete(self, webhook_id: str) -> None:
        """Delete it with what it has not delivered. Raises WebhookNotFound."""
        self._sender.perform(calls.delete_webhook(webhook_id))

    def rotate(
        self, webhook_id: str, *, keep_seconds: float | None = None, idempotency_key: str | None = None
    ) -> WebhookWithSecret:
        """Make a new secret. The old one signs as well for `keep_seconds`, a day by default."""
        call = calls.rotate_webhook_secret(webhook_id, keep_seconds=keep_seconds, idempotency_key=idempotency_key)
        return self._sender.perform(call)

    def test(self, webhook_id: str) -> WebhookTest:
        """Send a signed message of the type `webhook.test` at once. Raises WebhookNotFound."""
        return self._sender.perform(calls.test_webhook(webhook_id))

    def deliveries(
        self, webhook_id: str, *, state: Literal["waiting", "dead"] | None = None, page_size: int | None = None
    ) -> Iterator[WebhookDelivery]:
        """The events that it has not delivered, fetched page by page as they are needed."""
        return self._sender.iterate_pages(calls.list_deliveries(webhook_id, state=state, page_size=page_size))

    def resend(self, webhook_id: str, cursor: str) -> WebhookDelivery:
        """Have one tried again at once. Raises WebhookNotFound, DeliveryNotFound."""
        return self._sender.perform(calls.resend_delivery(webhook_id, cursor))


class Audit:
    """The audit log: what was done to sessions that are gone."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def list(self, *, after: int | None = None, page_size: int | None = None) -> Iterator[AuditEntry]:
        """Entries with seq > `after`, oldest first, fetched page by page as they are needed."""
        return self._sender.iterate_pages(calls.list_audit(after=after, page_size=page_size))

    def verify(self, *, head: Head | None = None) -> Verification:
        """Check the audit log's hash chain, and that it still has an earlier `head`."""
        return self._sender.perform(calls.verify_audit(head))

    def checkpoint(self, number: int | None = None, *, since: int | None = None) -> Checkpoint:
        """A checkpoint of all sessions: a new one, if there is anything new, or an earlier one by its number.

        `since` asks for the proof that it goes on from so many first leaves. Raises CheckpointNotFound and LogDamaged.
        """
        return self._sender.perform(calls.get_checkpoint(number, since))

    def leaves(self, *, after: int | None = None, page_size: int | None = None) -> Iterator[Leaf]:
        """The leaves that checkpoints are of, those with a greater index than `after`, page by page."""
        return self._sender.iterate_pages(calls.list_leaves(after=after, page_size=page_size))


class Keys:
    """The API keys of the key's own tenant, for keys with the role `admin`."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    def create(
        self,
        *,
        name: str = "",
        role: Role = "write",
        expires_at: datetime | str | None = None,
        idempotency_key: str | None = None,
    ) -> CreatedKey:
        """Make a key; `name` says who or what uses it. The key itself is in `key`, this once.

        An answer that is lost is asked for again, and then `key` is None: revoke that key, and make another.
        Raises ValueError for a time without a zone.
        """
        call = calls.create_key(name=name, role=role, expires_at=expires_at, idempotency_key=idempotency_key)
        return self._sender.perform(call)

    def list(self, *, page_size: int | None = None) -> Iterator[ApiKey]:
        """Keys, oldest first, with those that were revoked or have ended; never the keys themselves."""
        return self._sender.iterate_pages(calls.list_keys(page_size=page_size))

    def revoke(self, key_id: str) -> ApiKey:
        """End a key for good; one that was revoked before stays as it is. Raises ApiKeyNotFound."""
        return self._sender.perform(calls.revoke_key(key_id))
