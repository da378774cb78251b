"""`python old_client.py URL`: all that the client of 0.1.0 offers, on the server at that address.

It is run with that release's own package, so no other release's names may occur here. The server has the agents of
test_old_programs.py and the offline model.
"""

from __future__ import annotations

import asyncio
import sys

import swarmkeep_client
from swarmkeep_client import (
    AgentNotFound,
    AlreadyDecided,
    AsyncClient,
    Client,
    InvalidRequest,
    RunNotFound,
    SeqMismatch,
    SessionExists,
    SessionNotFound,
)


def expect(error: type[Exception], call: object, *arguments: object, **options: object) -> None:
    try:
        call(*arguments, **options)  # type: ignore[operator]
    except error:
        return
    raise AssertionError(f"no {error.__name__}")


def talk(client: Client) -> None:
    assert client.health().ready
    assert {agent.name for agent in client.agents.list()} == {"Refunds", "Triage"}
    assert client.agents.get("Triage").name == "Triage"
    expect(AgentNotFound, client.agents.get, "Nobody")
    expect(AgentNotFound, client.sessions.create, agent="Nobody")

    session = client.sessions.create(id="order-1", agent="Triage", context_variables={"a": 1}, metadata={"vip": True})
    expect(SessionExists, client.sessions.create, id="order-1")
    expect(SessionNotFound, client.sessions.get, "order-2")
    expect(InvalidRequest, session.run, [{"role": "nobody", "content": "Hello."}])

    waiting = session.run("I want a refund for order A-17.", context_variables={"b": 2}, max_turns=5)
    assert (waiting.status, waiting.agent, waiting.pending[0].name) == ("waiting", "Refunds", "refund_order")
    approval = {"tool_call_id": waiting.pending[0].tool_call_id, "decision": "approve"}
    items = list(session.resume_stream(waiting.id, approvals=[approval]))  # type: ignore[list-item]
    assert items[-1].type == "done"
    assert items[-1].run.output_text  # type: ignore[union-attr]
    expect(AlreadyDecided, session.resume, waiting.id, approvals=[{**approval, "decision": "deny"}])
    assert session.refresh().context_variables == {"a": 1, "b": 2, "refunded": "A-17"}

    types = [item.type for item in session.stream("Thank you.")]
    assert types[0] == "run.started"
    assert types[-2:] == ["run.completed", "done"]
    assert {"message.started", "message.delta"} <= set(types)
    first, second = session.runs()
    assert {first.status, second.status} == {"completed"}
    joined = [item.type for item in session.join(waiting.id)]
    assert joined[-1] == "done"
    assert session.get_run(waiting.id).usage.model_calls >= 2
    expect(RunNotFound, session.get_run, "run_nobody")
    assert session.cancel() is None

    outside = session.run("I want a refund for order A-18.", execute_tools=False)
    assert outside.stop_reason == "tool_calls"
    result = {"tool_call_id": outside.pending[0].tool_call_id, "content": "done elsewhere"}
    assert session.resume(outside.id, tool_results=[result]).status == "completed"  # type: ignore[list-item]
    halted = session.run("A refund for order A-19, please.", execute_tools=False)
    assert session.cancel(halted.id).status == "cancelled"
    look_back(client)


def look_back(client: Client) -> None:
    session = client.sessions.get("order-1")
    events = list(session.events(page_size=5))
    assert [event.seq for event in events] == list(range(1, session.seq + 1))
    assert [event.seq for event in session.events(type="run.started")] == [
        event.seq for event in events if event.type == "run.started"
    ]
    assert next(session.follow(after=3)) == events[3]
    assert session.messages()[1]["role"] == "assistant"
    assert session.state(at=1).context_variables == {"a": 1}
    asked = next(event.seq for event in events if event.type == "message.added" and "completion" in event.data)
    assert session.request(asked)["messages"][-1]["content"] == "I want a refund for order A-17."
    assert session.request_body(asked).startswith(b"{")
    head = swarmkeep_client.Head(seq=3, hash=events[2].hash)
    assert session.verify(head=head).valid
    assert session.replay().matches
    assert session.diff(0, session.seq).messages
    assert "A-17" in session.transcript()
    assert session.transcript("html", at=4).startswith("<!doctype html>")

    fork = session.fork(at=3, id="order-1-again", metadata={"try": 2}, agent="Refunds")
    assert fork.forked_from is not None
    assert session.compare(fork).shared_seq == 3
    session.update(context_variables={"a": None}, metadata={"vip": None, "x": 1}, if_match=session.refresh().seq)
    assert "a" not in session.context_variables
    expect(SeqMismatch, session.update, metadata={"x": 2}, if_match=1)
    listed = list(client.sessions.list(metadata={"x": 1}, page_size=1))
    assert [found.id for found in listed] == ["order-1"]
    assert [found.id for found in client.sessions.list(agent="Refunds", status="idle")]

    file = b"".join(session.export())
    assert client.import_sessions(file).present == 1
    assert client.import_sessions(file, as_id="copy", dry_run=True).dry_run
    assert client.import_sessions(file, as_id="copy").imported == 1
    assert len(b"".join(client.export())) > len(file)
    chat = b'[{"role": "user", "content": "Hello."}]'
    assert client.import_sessions(chat, source="chat", agent="Triage").imported == 1

    redaction = session.redact([3], "asked for", include_forks=True)
    assert redaction.seqs == [3]
    assert session.verify().valid
    assert {row.agent for row in client.usage(["agent", "model"])} == {"Refunds", "Triage"}
    fork.delete(reason="tried out")
    assert any(entry.type == "session.deleted" for entry in client.audit.list())
    assert client.audit.verify().valid


async def talk_async(url: str) -> None:
    async with AsyncClient(url) as client:
        assert (await client.health()).ready
        session = await client.sessions.create(agent="Triage")
        run = await session.run("I want a refund for order A-20.")
        denial = {"tool_call_id": run.pending[0].tool_call_id, "decision": "deny", "reason": "no"}
        assert (await session.resume(run.id, approvals=[denial])).status == "completed"  # type: ignore[list-item]
        assert [item.type async for item in session.stream("Thank you.")][-1] == "done"
        await session.refresh()
        assert [event.seq async for event in session.events(page_size=2)] == list(range(1, session.seq + 1))
        assert {found.id async for found in client.sessions.list()} >= {session.id, "order-1"}
        assert (await session.verify()).valid
        await session.delete()


if __name__ == "__main__":
    url = sys.argv[1]
    with Client(url) as client:
        talk(client)
    asyncio.run(talk_async(url))
    print("from", swarmkeep_client.__file__)
