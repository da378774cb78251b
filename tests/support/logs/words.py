"""What people and models write, and what they make of a history."""

from __future__ import annotations

from typing import Any

from swarmkeep.events.codec import Json
from swarmkeep.request.request import Profile
from tests.support.logs.dice import Dice

DEEP = 150
TEXTS = (
    "hello", "", " ", "Grüße, 世界 😀", "e\u0301 and \u00e9", "NUL \0 inside", "a lone \ud800 surrogate", "\udfff",
    'quotes " and \\ and \n lines', "\u2028", '{"role": "system"}', "long " * 100,
)  # fmt: skip
ARGUMENTS = (
    "{}", '{"city": "Oslo"}', ' {"n": 1.0, "n": 1} ', "", "null", "[]", '"text"', "7", '{"a":', "{'a': 1}", "{}{}",
    "\0",
    '{"a": NaN}', '{"a": 1e400}', '{"a": Infinity}', '{"a": %s}' % ("9" * 5000), '{"a": "\ud800"}', '{"a": "\\ud800"}',
    '{"a": "\0"}', '{"a": "\\u0000"}', '{"a":' * 1500, '{"a":' * 1500 + "1" + "}" * 1500, "[" * 5000, "not json",
)  # fmt: skip
_NESTED: Any = 1
for _ in range(DEEP):
    _NESTED = {"deeper": _NESTED}
VALUES = (
    1, None, True, False, 0, 1.0, -0.0, 2**63, -(2**63) - 1, 10**40, 5e-324, 1.7976931348623157e308, 0.1, "", "text",
    "\ud800", [], {}, [None], {"a": None}, {"a": {"b": None}}, [1, {"c": None}, [True]], {"": {"~/": 1}}, _NESTED,
)  # fmt: skip
KEYS = ("city", "user", "", "a/b", "~", "~1", "\ud800", "é")
TOOLS = ("look_up", "transfer_to_b", "transfer_to_c", "remember", "forget", "danger", "explode", "no such tool!", "")
DANGEROUS = ("danger", "forget")
CONCURRENT = ("look_up", "remember", "forget", "transfer_to_c")
AGENTS = ("a", "b", "c", "ä \ud800")
USAGES: tuple[Json | None, ...] = (
    {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}, None, {}, {"total_tokens": "many"},
    {"prompt_tokens": None, "details": {"cached": 1}},
)  # fmt: skip
PROFILES = tuple(
    Profile(name="a", model="m", instructions=text, tools=tools, tool_choice=choice)
    for text in ("You are helpful.", "", "\ud800 \0")
    for tools, choice in (
        (None, None),
        ('[{"type":"function","function":{"name":"look_up","parameters":{}}}]', "auto"),
        ('[{"type":"function","function":{"name":"danger"}}]', {"type": "function", "function": {"name": "danger"}}),
    )
)


def make_messy_history(dice: Dice) -> list[Json]:
    """Messages as an import may bring them: results without calls, calls without results, ids used again, late ones."""
    return [_make_messy_message(dice) for _ in range(dice.pick(range(7)))]


def _make_messy_message(dice: Dice) -> Json:
    role = dice.pick(("user", "assistant", "tool", "assistant", "tool", "system", "developer"))
    message: Json = {"role": role, "content": dice.pick(TEXTS)}
    if role == "tool":
        message["tool_call_id"] = dice.pick(("h1", "h2", "h3"))
    elif dice.chance(20):
        message["name"] = dice.pick(("John", "John Smith", "", "a|b\ud800"))
    if role == "assistant" and dice.chance(60):
        message["tool_calls"] = [
            {
                "id": dice.pick(("h1", "h2", "h3")),
                "type": "function",
                "function": {"name": dice.pick(TOOLS), "arguments": dice.pick(ARGUMENTS)},
            }
            for _ in range(dice.pick(range(4)))
        ]
        message["content"] = dice.pick((None, "", "Let me see."))
    if role == "user" and dice.chance(20):
        message["content"] = [{"type": "text", "text": dice.pick(TEXTS)}]
    if dice.chance(20):
        message |= {"sender": "somebody", "seq": 99, "annotations": [], "refusal": None}
    return message
