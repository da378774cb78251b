"""Ids that the server makes."""

from __future__ import annotations

from swarmkeep.decide.checks import check_id
from swarmkeep.runs.identifiers import derive_id, make_id


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
