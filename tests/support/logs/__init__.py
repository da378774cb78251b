"""Session logs to try things on, and hypothesis strategies that make them.

Two kinds: those that a server writes, with whatever may happen to a session (`make_random_log`, `random_logs`), and
those that no server ever wrote (`make_hostile_log`, `hostile_logs`). Both hang on a `Dice`, so they come from
hypothesis, which shrinks them, or from a seed, which is quicker: `make_random_log(SeededDice(7))`.
"""

from __future__ import annotations

from tests.support.logs.dice import Dice, DrawnDice, SeededDice
from tests.support.logs.hostile import make_hostile_log
from tests.support.logs.random_session import RandomSession, make_random_log
from tests.support.logs.recording import record_draft, record_drafts
from tests.support.logs.strategies import (
    any_logs,
    json_objects,
    json_values,
    profiles,
    random_logs,
    random_sessions,
    texts,
)
from tests.support.logs.words import ARGUMENTS, CONCURRENT, PROFILES, TEXTS, make_messy_history

__all__ = [
    "ARGUMENTS",
    "CONCURRENT",
    "PROFILES",
    "TEXTS",
    "Dice",
    "DrawnDice",
    "RandomSession",
    "SeededDice",
    "any_logs",
    "json_objects",
    "json_values",
    "make_hostile_log",
    "make_messy_history",
    "make_random_log",
    "profiles",
    "random_logs",
    "random_sessions",
    "record_draft",
    "record_drafts",
    "texts",
]
