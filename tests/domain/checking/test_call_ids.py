"""The ids of calls are known of a whole session, and cost what has been said since."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.domain.chain import Chain
from swarmkeep.domain.checking.call_ids import CallIds, find_call_ids
from swarmkeep.domain.messages import Entry


def make_entry(seq: int, *call_ids: str, removed: tuple[str, ...] = ()) -> Entry:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in call_ids]
    message = {"role": "assistant", "content": None, "tool_calls": calls} if calls else {"role": "user", "content": "x"}
    return Entry(seq=seq, at="", run_id=None, message=message, removed_calls=removed)


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=3, unique=True), max_size=30), st.data())
def test_every_id_is_known_and_no_other_however_the_messages_came(calls: list[list[str]], data: st.DataObject) -> None:
    messages: Chain[Entry] = Chain()
    for seq, names in enumerate(calls):
        before, messages = messages, messages.append(make_entry(seq, *names))
        if data.draw(st.booleans()):
            # Another one that grew from the same beginning, and has a call of its own.
            assert "other" in find_call_ids(before.append(make_entry(seq, "other")))
        if data.draw(st.booleans()):
            find_call_ids(messages)
    said = {name for names in calls for name in names}
    for found in (find_call_ids(messages), find_call_ids(list(messages))):
        assert {name for name in ("other", *"abcdefghij") if name in found} == said
        assert found.upto == len(calls)


def test_a_call_that_was_taken_out_stays_known() -> None:
    messages = Chain([make_entry(1, "a"), make_entry(2, "b")])
    find_call_ids(messages)
    assert "a" in find_call_ids(messages.replace_at(0, make_entry(1, "a", removed=("a",))))


def test_a_long_session_has_its_calls_in_a_few_sets() -> None:
    found = CallIds()
    for number in range(10_000):
        found = found.extend([make_entry(number, f"call_{number}")])
    assert len(found.parts) <= 14
    assert ("call_0" in found, "call_9999" in found, "call_10000" in found) == (True, True, False)
    sizes = [len(part) for part in found.parts]
    assert all(larger >= 2 * smaller for larger, smaller in itertools.pairwise(sizes))
    # Nothing was said since: nothing is looked at again.
    chain = Chain([make_entry(1, "a")])
    assert find_call_ids(chain) is find_call_ids(chain)
