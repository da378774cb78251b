"""The demo's conversation: five messages, an approval, and a server that dies in the middle of an answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from swarmkeep.cli.render.screen import Screen
from swarmkeep.cli.terminal import Refused
from swarmkeep_client import Approval, Client, Done, Event, MessageDelta, Run, Session, StreamItem

MESSAGES = (
    "Hello, I'd like to buy a lantern for a hut trip.",
    "Yes, please place the order.",
    "Something else: please refund my gas stove, STOVE-3, because the flame goes out.",
    "I would like to speak to a manager about this.",
    "Please add a note to the ticket: mornings are the best time to reach me.",
)
CRASH_FROM = 2
"""The first message that the server may die over: by then the client knows that the run is under way."""
WORDS_BEFORE_CRASH = 4
CUSTOMER = {"user_name": "Robin"}


@dataclass
class DemoConversation:
    """Plays the conversation through the client, as any program would; `crash` kills the server and brings it back."""

    client: Client
    screen: Screen
    crash: Callable[[], None]
    runs: list[Run] = field(default_factory=list)
    recovered_run_id: str | None = None

    def play(self, session_id: str) -> Session:
        session = self.client.sessions.create(id=session_id, context_variables=CUSTOMER)
        for number, message in enumerate(MESSAGES):
            self.screen.line("")
            self.screen.write("User", "bold", end=": ")
            self.screen.write(message)
            run = self._listen(session.stream(message), may_crash=number >= CRASH_FROM)
            while run.status == "waiting":
                self.screen.line("!! a person approves: the run continues", "bold green")
                decisions: list[Approval] = [
                    {"tool_call_id": c.tool_call_id, "decision": "approve"} for c in run.pending
                ]
                run = self._listen(session.resume_stream(run.id, approvals=decisions), may_crash=False)
            self._add_completed(run)
        return session.refresh()

    def _listen(self, items: Iterable[StreamItem], *, may_crash: bool) -> Run:
        moment = _CrashTrigger()
        run: Run | None = None
        for item in items:
            self.screen.show(item)
            if isinstance(item, Event) and item.type == "run.resumed" and item.data["reason"] == "recovery":
                self.recovered_run_id = item.run_id
            if isinstance(item, Done):
                run = item.run
            # Should the run have been quicker than the kill, the next one is tried.
            elif may_crash and self.recovered_run_id is None and moment.observe(item):
                may_crash = False
                self.screen.end_line()
                self.crash()
                # The loop goes on: the client finds its stream broken, and takes it up where it was.
        if run is None:
            raise Refused("a run's stream has ended before the run")
        return run

    def _add_completed(self, run: Run) -> None:
        if run.status != "completed":
            raise Refused(f"run {run.id} is {run.status}, not completed")
        self.runs.append(run)


class _CrashTrigger:
    """When to kill the server: a tool's result is in the log, and the answer about it has begun."""

    def __init__(self) -> None:
        self._has_result = False
        self._words = 0

    def observe(self, item: StreamItem) -> bool:
        if isinstance(item, Event) and item.type == "message.added":
            self._has_result = item.data["message"]["role"] == "tool"
            self._words = 0
        elif isinstance(item, MessageDelta) and item.content and self._has_result:
            self._words += 1
        return self._words >= WORDS_BEFORE_CRASH


def check_log(events: list[Event], story: DemoConversation) -> list[str]:
    """What the session's log says about the demo. Raises Refused if it is not what the demo promised."""
    if [event.seq for event in events] != list(range(1, len(events) + 1)):
        raise Refused("the session's events are not numbered without gaps")
    run_id = story.recovered_run_id
    if run_id is None:
        raise Refused("no run was recovered after the server was killed")
    handoffs = [event for event in events if event.type == "handoff.made"]
    turns = [event for event in events if event.type == "message.added" and event.data.get("completion")]
    agents = list(dict.fromkeys(event.agent for event in events if event.agent))
    resumed = next(event for event in events if event.type == "run.resumed" and event.run_id == run_id)
    tools = [event.data for event in events if event.run_id == run_id and event.type == "tool.started"]
    again = [tool["name"] for tool in tools if tool["attempt"] > 1]
    return [
        f"{len(events)} events, numbered 1 to {len(events)} without a gap, in one session with {len(agents)} agents: "
        f"{', '.join(agents)}",
        f"{len(story.runs)} runs, all completed: {len(turns)} turns, {len(handoffs)} handoffs",
        f"recovered: run {run_id} was cut off after event {resumed.seq - 1} when the server died, and continued at "
        f"event {resumed.seq} after the restart",
        f"its tools: {', '.join(tool['name'] for tool in tools)}; started a second time: {', '.join(again) or 'none'}",
    ]
