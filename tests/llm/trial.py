"""Run the bundled teams on the small model, with servers that are killed in between."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from urllib.request import urlopen

from swarmkeep.runs.agents import load_registry
from swarmkeep_agents import TEAMS, conversations
from swarmkeep_client import Client, Done, Event, RunFailed, Session, SessionState, StreamItem, ToolResult
from tests.support.llm import ModelCall, Recorder
from tests.support.processes import ServerProcess

# Two servers, because acme and triage both have a "Triage Agent".
GROUPS = (("acme", "airline"), ("triage", "basic", "weather", "personal_shopper", "support_bot", "librarian"))

# The conversations of `basic` are with its first agent, which has no functions, and those of `acme` seldom come to an
# order, which a person has to approve. These are with others; the English agent can do nothing but hand over.
EXTRA_CONVERSATIONS = {
    "acme": {"Sales Agent": ["Please place the order for one lantern now."]},
    "basic": {
        "English Agent": ["Hola, ¿habla español?"],
        "Notebook Agent": ["Please write a note: buy bread.", "Please read the notebook."],
    },
}
LAST_WORDS = "Thank you, that is all."

# Left to themselves, two agents that both can hand over send each other the customer for ever.
MAX_TURNS = 3
# Of each team; more would take longer and show nothing new.
TEXTS = 2
LAST_TOKENS = 12
TERMINAL = ("run.completed", "run.failed", "run.cancelled", "run.interrupted")


@dataclass
class TrialSession:
    """One session: what was said to it, and what its server told of it at the end."""

    team: str
    agent: str
    texts: list[str]
    session_id: str = ""
    streams: list[list[StreamItem]] = field(default_factory=list)
    events_before_kill: list[Event] = field(default_factory=list)
    last_run_id: str = ""
    state: SessionState | None = None
    events: list[Event] = field(default_factory=list)
    requests: dict[int, bytes] = field(default_factory=dict)
    """The request behind each answer of the model, by the answer's seq, as the server rebuilt it."""

    @property
    def answers(self) -> list[Event]:
        """Every message that the model said."""
        return [event for event in self.events if event.type == "message.added" and event.data.get("completion")]

    def of_type(self, *types: str) -> list[Event]:
        return [event for event in self.events if event.type in types]


@dataclass
class Group:
    """A server's sessions, its database, and the run that it was killed in."""

    teams: tuple[str, ...]
    database_url: str
    sessions: list[TrialSession]
    cut_run_id: str = ""

    @property
    def agents(self) -> list[str]:
        return [TEAMS[team] for team in self.teams]


@dataclass
class Trial:
    groups: list[Group]
    calls: list[ModelCall]
    seconds: float

    @property
    def sessions(self) -> list[TrialSession]:
        return [record for group in self.groups for record in group.sessions]

    def summary(self) -> str:
        types = Counter(event.type for record in self.sessions for event in record.events)
        results = [event.data["tool"]["status"] for record in self.sessions for event in list_results(record.events)]
        ends = Counter(event.data["stop_reason"] for record in self.sessions for event in record.of_type(*TERMINAL))
        tools = ", ".join(f"{count} {status}" for status, count in Counter(results).most_common())
        return (
            f"{sum(len(record.answers) for record in self.sessions)} turns in {len(self.sessions)} sessions, "
            f"{len(results)} tool calls ({tools}), {types['handoff.made']} handoffs, "
            f"{types['handoff.ignored']} ignored, {types['approval.decided']} approvals; runs ended by "
            f"{', '.join(f'{reason} {count}' for reason, count in ends.most_common())}; {self.seconds:.0f} s"
        )


def list_results(events: Iterable[Event]) -> list[Event]:
    """The messages that are a tool's result."""
    return [event for event in events if event.type == "message.added" and event.data.get("tool")]


def run_trial(recorder: Recorder, folder: Path) -> Trial:
    """Hold every conversation, kill each server in the middle of a model call, and go on with every session."""
    started = time.monotonic()
    groups = []
    for teams in GROUPS:
        place = folder / "-".join(teams)
        place.mkdir()
        groups.append(_hold_conversations(teams, recorder, place))
    return Trial(groups, recorder.calls, time.monotonic() - started)


def _make_sessions(team: str) -> Iterator[TrialSession]:
    first = load_registry([TEAMS[team]]).default
    yield TrialSession(team, first, conversations(team)[0][:TEXTS])
    for agent, texts in EXTRA_CONVERSATIONS.get(team, {}).items():
        yield TrialSession(team, agent, texts)


def _hold_conversations(teams: tuple[str, ...], recorder: Recorder, folder: Path) -> Group:
    # The lease is short because the run that was cut off must wait for it to run out.
    env = {"OPENAI_BASE_URL": recorder.url, "SWARMKEEP_LEASE_SECONDS": "5"}
    server = ServerProcess(folder, agents=[TEAMS[team] for team in teams], offline=False, env=env)
    records = [record for team in teams for record in _make_sessions(team)]
    group = Group(teams, server.database_url, records)
    with server, Client(server.url) as client:
        ways = cycle((_run, _run_streamed, _run_without_tools, _run_streamed, _run_one_turn))
        for record in records:
            session = client.sessions.create(agent=record.agent, context_variables={"user_name": "Ana"})
            record.session_id = session.id
            for text in record.texts:
                # A run that failed is looked at in the log.
                with suppress(RunFailed):
                    next(ways)(record, session, text)
                _approve_pending(session)
        sessions = {record.session_id: client.sessions.get(record.session_id) for record in records}
        group.cut_run_id = _kill_in_a_model_call(server, recorder, group, sessions)
        for record in records:
            session = sessions[record.session_id]
            _approve_pending(session)
            # Words and no call, so that each session's last run comes to its own end.
            settings = {"max_tokens": LAST_TOKENS}
            record.last_run_id = session.run(LAST_WORDS, max_turns=1, tool_choice="none", model_settings=settings).id
            _approve_pending(session)
            record.state = session.state()
            record.events = list(session.events())
            record.requests = {event.seq: _fetch_request(server, record, event.seq) for event in record.answers}
        assert server.stop() == 0
    return group


def _run(record: TrialSession, session: Session, text: str) -> None:
    session.run(text, max_turns=MAX_TURNS, tool_choice="required")


def _run_one_turn(record: TrialSession, session: Session, text: str) -> None:
    session.run(text, max_turns=1, tool_choice="required")


def _run_streamed(record: TrialSession, session: Session, text: str) -> None:
    items: list[StreamItem] = []
    record.streams.append(items)
    for item in session.stream(text, max_turns=MAX_TURNS):
        items.append(item)


def _run_without_tools(record: TrialSession, session: Session, text: str) -> None:
    run = session.run(text, max_turns=MAX_TURNS, execute_tools=False, tool_choice="required")
    while run.status == "waiting":
        results = [ToolResult(tool_call_id=call.tool_call_id, content="It is done.") for call in run.pending]
        run = session.resume(run.id, tool_results=results)


def _approve_pending(session: Session) -> None:
    """Say yes to whatever the session waits for."""
    while (run_id := session.refresh().active_run_id) is not None:
        pending = session.get_run(run_id).pending
        with suppress(RunFailed):
            session.resume(run_id, approvals=[{"tool_call_id": c.tool_call_id, "decision": "approve"} for c in pending])


def _kill_in_a_model_call(server: ServerProcess, recorder: Recorder, group: Group, sessions: dict[str, Session]) -> str:
    """Kill the server and start it anew; gives the run that it was killed in, once that has come to its end."""
    cut = sessions[group.sessions[0].session_id]
    with recorder.hold_answers():
        count = len(recorder.calls)
        run = cut.run("Are you still there?", background=True, max_turns=MAX_TURNS)
        recorder.wait_for_calls(count + 1)
        for record in group.sessions:
            record.events_before_kill = list(sessions[record.session_id].events())
        server.kill()
    server.start()
    with closing(cut.follow(type=TERMINAL)) as ends:
        assert any(event.run_id == run.id for event in ends)
    return run.id


def _fetch_request(server: ServerProcess, record: TrialSession, seq: int) -> bytes:
    with urlopen(f"{server.url}/v1/sessions/{record.session_id}/events/{seq}/request", timeout=60) as answer:
        body = answer.read()
    assert isinstance(body, bytes)
    return body


def last_item(items: list[StreamItem]) -> Done:
    assert isinstance(items[-1], Done)
    return items[-1]
