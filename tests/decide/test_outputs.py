"""An answer that has to be of a certain form: what is recorded of it."""

from __future__ import annotations

from swarmkeep.decide.turns import Verdict, record_verdict
from swarmkeep.events.facts import MessageAdded, RunFailed, SessionEvent
from swarmkeep.events.records import Usage
from swarmkeep.events.state import State
from tests.events.given import (
    active_run,
    answer_message,
    calling_message,
    given,
    make_run_started,
    model_reply,
    tool_call,
    user_said,
    when,
)

CALLS = given(make_run_started(), user_said(), model_reply(calling_message(tool_call("c1"), tool_call("c2"))))


def judge(state: State, *problems: str, retries: int = 1) -> list[SessionEvent]:
    run = active_run(state)
    verdict = Verdict(problems=problems, retries=retries, calls=run.calls)
    return record_verdict(run, verdict, "triage", Usage(1, 2, 3, 1))


def list_statuses(facts: list[SessionEvent]) -> list[tuple[str, object, object]]:
    tools = [fact.tool for fact in facts if isinstance(fact, MessageAdded)]
    return [(tool.name, tool.status, tool.output) for tool in tools if tool is not None]


def test_first_answer_call_counts() -> None:
    taken, beside = judge(CALLS)
    assert [status for _, status, _ in list_statuses([taken, beside])] == ["ok", "error"]
    assert active_run(when(CALLS, taken)).answered
    assert not active_run(when(CALLS, beside)).answered


def test_wrong_answer_call_errors_and_counts() -> None:
    facts = judge(CALLS, "it is empty")
    assert [status for _, status, _ in list_statuses(facts)] == ["error", "error"]
    run = active_run(when(CALLS, *facts))
    assert (run.corrections, run.answered, run.open_calls) == (1, False, ())


def test_wrong_text_returned_until_limit() -> None:
    state = given(make_run_started(), user_said(), model_reply(answer_message()))
    details = []
    for retries in (0, 1, 2):
        run = active_run(state)
        *_, last = judge(state, "no JSON", retries=retries)
        assert isinstance(last, RunFailed)
        assert last.error is not None
        assert last.usage == Usage(1, 2, 3, 1)
        details.append(last.error.message.partition(" not of")[0])
        (sent,) = judge(state, "no JSON", retries=retries + 1)
        state = when(state, sent)
        assert (state.messages[-1].role, state.messages[-1].is_correction) == ("user", True)
        assert active_run(state).corrections == run.corrections + 1
    assert details == ["the answer is", "2 answers in this run were", "3 answers in this run were"]
