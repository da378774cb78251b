"""Which database a test of `one_database` runs on: SQLite and PostgreSQL in turn, from case to case of a module.

For what is built on the store, and says no SQL of its own: that both databases do alike is shown by the store's tests.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pytest

KINDS = ("sqlite", "postgres")


def add_option(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-database", action="store_true", help="run a test that is marked `one_database` on one of both, in turn"
    )


def is_wanted(config: pytest.Config) -> bool:
    """Only where it is asked for; and not where a test or a database is named, for that is meant."""
    named = any("::" in given for given in config.args) or any(kind in config.getoption("keyword") for kind in KINDS)
    return bool(config.getoption("one_database")) and not named


def split_cases(items: Sequence[pytest.Item]) -> tuple[list[pytest.Item], list[pytest.Item]]:
    """Those that run, and those that are left to the other database."""
    spare = set(_find_spare(items))
    return [item for item in items if item not in spare], [item for item in items if item in spare]


def _find_spare(items: Sequence[pytest.Item]) -> Iterator[pytest.Item]:
    modules: dict[object, dict[str, dict[str, pytest.Item]]] = {}
    for item in items:
        if (kind := _find_kind(item)) and item.get_closest_marker("one_database"):
            modules.setdefault(item.path, {}).setdefault(_name_case(item, kind), {})[kind] = item
    for cases in modules.values():
        for number, found in enumerate(cases.values()):
            if len(found) > 1:
                yield found[KINDS[number % 2]]


def _name_case(item: pytest.Item, kind: str) -> str:
    name, _, parameters = item.nodeid.partition("[")
    return f"{name}[{'-'.join(part for part in parameters.rstrip(']').split('-') if part != kind)}]"


def _find_kind(item: pytest.Item) -> str | None:
    callspec = getattr(item, "callspec", None)
    values: Iterable[object] = () if callspec is None else callspec.params.values()
    found = [value for value in values if isinstance(value, str) and value in KINDS]
    return str(found[0]) if len(found) == 1 else None
