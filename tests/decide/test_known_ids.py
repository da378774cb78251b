"""The ids of calls and runs are known of a whole session, and cost what has been said since."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from swarmkeep.decide.checks import check_id
from swarmkeep.events.chain import Chain
from swarmkeep.events.messages import Entry
from swarmkeep.events.records import RunOptions
from swarmkeep.events.state import KnownIds, Run, extend_ids, find_call_ids, find_finished_runs
from swarmkeep.runs.identifiers import derive_id, make_id


def make_entry(seq: int, *call_ids: str, removed: tuple[str, ...] = ()) -> Entry:
    calls = [{"id": name, "type": "function", "function": {"name": "f", "arguments": "{}"}} for name in call_ids]
    message = {"role": "assistant", "content": None, "tool_calls": calls} if calls else {"role": "user", "content": "x"}
    return Entry(seq=seq, at="", run_id=None, message=message, removed_calls=removed)


@given(st.lists(st.lists(st.sampled_from("abcdefghij"), max_size=3, unique=True), max_size=30), st.data())
def test_every_id_known_however_messages_came(calls: list[list[str]], data: st.DataObject) -> None:
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
        for name in "abcdefghij":
            assert list(found.find(name)) == [place for place, names in enumerate(calls) if name in names]


def test_removed_call_stays_known_without_rescan() -> None:
    messages = Chain([make_entry(1, "a"), make_entry(2, "b")])
    known = find_call_ids(messages)
    emptied = messages.replace_at(0, make_entry(1, "a", removed=("a",)))
    assert find_call_ids(emptied) is find_call_ids(messages) is known
    assert "a" in known
    # Nor in what is a copy because of it.
    copied = messages.append(make_entry(3))
    assert copied.shared is not messages.shared
    assert find_call_ids(copied).parts is known.parts


def test_long_session_calls_kept_in_few_parts() -> None:
    found = KnownIds()
    for number in range(10_000):
        found = extend_ids(found, [number], lambda number: [f"call_{number}", "again"])
    assert len(found.parts) <= 15
    assert ("call_0" in found, "call_9999" in found, "call_10000" in found) == (True, True, False)
    assert (found.find("call_7000"), found.find("again"), found.find("no")) == ((7000,), tuple(range(10_000)), ())
    sizes = [part.size for part in found.parts]
    assert all(larger >= 2 * smaller for larger, smaller in itertools.pairwise(sizes))
    # Nothing was said since: nothing is looked at again.
    chain = Chain([make_entry(1, "a")])
    assert find_call_ids(chain) is find_call_ids(chain)


def test_finished_runs_known_by_id() -> None:
    runs = [make_run(f"run_{number}") for number in range(3)]
    finished: Chain[Run] = Chain(runs[:2])
    known = find_finished_runs(finished)
    assert ("run_0" in known, "run_1" in known, "run_2" in known) == (True, True, False)
    assert find_finished_runs(finished) is known
    assert "run_2" in find_finished_runs(finished.append(runs[2]))
    assert "run_1" not in find_finished_runs(finished.drop_last())


def make_run(run_id: str) -> Run:
    options = RunOptions()
    return Run(
        id=run_id, status="completed", options=options, first_seq=1, last_seq=1, created_at="", active_since="",
        agent="A", context_variables={}, first_message=0, last_message=0,
    )  # fmt: skip


# Ids that the server makes.


def test_ids_are_short_and_unique() -> None:
    made = {make_id("run") for _ in range(1000)}
    assert len(made) == 1000
    assert {len(each) for each in made} == {len("run_") + 16}
    for each in made:
        assert check_id(each).startswith("run_")


def test_ids_use_all_of_their_characters() -> None:
    seen: dict[int, set[str]] = {place: set() for place in range(16)}
    for _ in range(2000):
        for place, character in enumerate(make_id("x").removeprefix("x_")):
            seen[place].add(character)
    assert {len(characters) for characters in seen.values()} == {62}


def test_derived_id_is_stable() -> None:
    assert derive_id("sess", "default/a") == "sess_55OUzkDflpQeisEzfkza"
    assert derive_id("sess", "default/a") != derive_id("sess", "default/b")
    assert check_id(derive_id("sess", "\ud800"))
