import asyncio
import functools
import json
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator

from swarmkeep.agent import Tool, ToolArgumentsError, ToolCallId, tool
from tests.agent.test_values import JSON, TEXT


class Colour(Enum):
    RED = "red"


@dataclass
class Place:
    city: str


class Order(BaseModel):
    id: str
    lines: list[int]

    @field_validator("id")
    @classmethod
    def _known(cls, value: str) -> str:
        if value == "odd":
            raise ValueError("there is no such order")
        if value == "broken":
            raise KeyError("table")
        return value


def bind(function: Any, arguments: Any = "", context: dict[str, Any] | None = None) -> functools.partial[Any]:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments)
    return Tool(function).bind(text, context_variables={} if context is None else context, tool_call_id="call_7")


def read_refusal(function: Any, arguments: Any) -> ToolArgumentsError:
    with pytest.raises(ToolArgumentsError) as caught:
        bind(function, arguments)
    message = str(caught.value)
    assert message.startswith(f"{caught.value.function} was not called, its arguments are wrong: ")
    assert "Traceback" not in message
    assert "https://" not in message
    assert "\n" not in message
    return caught.value


def echo(**given: Any) -> dict[str, Any]:
    return given


def weather(city: str, days: int = 1, unit: Literal["C", "F"] = "C") -> tuple[str, int, str]:
    return city, days, unit


def test_call_gets_model_arguments_and_defaults() -> None:
    assert bind(weather, {"city": "Oslo", "unit": "F"})() == ("Oslo", 1, "F")


def test_binding_calls_nothing() -> None:
    calls = []

    def act() -> None:
        calls.append(1)

    call = bind(act)
    assert calls == []
    call()
    assert calls == [1]


@pytest.mark.parametrize("arguments", ["", " ", "\n\t", "{}"])
def test_blank_arguments_are_no_arguments(arguments: str) -> None:
    def now() -> str:
        return "noon"

    assert bind(now, arguments)() == "noon"


def test_values_become_the_hinted_types() -> None:
    def f(colour: Colour, place: Place, order: Order, day: float, flag: bool, n: int) -> tuple[Any, ...]:
        return colour, place, order, day, flag, n

    given = {
        "colour": "red",
        "place": {"city": "Oslo"},
        "order": {"id": "1", "lines": ["2"]},
        "day": 1,
        "flag": "true",
        "n": "3",
    }
    assert bind(f, given)() == (Colour.RED, Place("Oslo"), Order(id="1", lines=[2]), 1.0, True, 3)


def test_number_accepted_for_text() -> None:
    assert bind(weather, {"city": 90210})()[0] == "90210"


@pytest.mark.parametrize("value", [None, 1, "x", [1, {"a": None}], {"a": 1}, True])
def test_unhinted_parameter_takes_anything(value: Any) -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return x

    assert bind(f, {"x": value})() == value


def test_explicit_null_equals_default_none() -> None:
    def f(x: str = None, y: int | None = 3) -> tuple[Any, Any]:  # type: ignore[assignment]  # noqa: RUF013
        return x, y

    assert bind(f, {"x": None, "y": None})() == (None, None)


def test_null_for_other_default_refused() -> None:
    assert "days should be a valid integer, but is null" in str(read_refusal(weather, {"city": "Oslo", "days": None}))


def test_default_is_passed_unchanged() -> None:
    def f(x: int = "not a number") -> Any:  # type: ignore[assignment]
        return x

    assert bind(f)() == "not a number"


def test_positional_only_parameters_filled_in_order() -> None:
    def f(a: int, b: int = 2, c: int = 3, /, d: int = 4) -> tuple[int, ...]:
        return a, b, c, d

    assert bind(f, {"a": 1, "c": 30, "d": 40})() == (1, 2, 30, 40)
    assert read_refusal(f, {"c": 3}).problems == ["a is missing"]


def test_context_passed_as_same_object() -> None:
    context: dict[str, Any] = {"seen": []}

    def f(context_variables: dict[str, Any], x: int) -> int:
        context_variables["seen"].append(x)
        context_variables["n"] = x
        return id(context_variables)

    assert bind(f, {"x": 1}, context)() == id(context)
    assert context == {"seen": [1], "n": 1}


def test_call_id_passed_on_request() -> None:
    def pay(amount: int, key: ToolCallId) -> tuple[int, str]:
        return amount, key

    assert bind(pay, {"amount": 5})() == (5, "call_7")


def test_model_cannot_fill_loop_parameters() -> None:
    def pay(amount: int, key: ToolCallId, context_variables: dict[str, Any]) -> None: ...

    problems = read_refusal(pay, {"amount": 1, "key": "mine", "context_variables": {"admin": True}}).problems
    assert problems == ['"key" is unexpected (it takes amount)', '"context_variables" is unexpected (it takes amount)']


def test_model_cannot_fill_partial_arguments() -> None:
    def find(table: str, key: str, **more: str) -> tuple[str, str, dict[str, str]]:
        return table, key, more

    mine = functools.partial(find, table="public")
    assert bind(mine, {"key": "k", "extra": "e"})() == ("public", "k", {"extra": "e"})
    assert '"table" is unexpected' in str(read_refusal(mine, {"key": "k", "table": "salaries"}))
    assert '"context_variables" is unexpected' in str(read_refusal(mine, {"key": "k", "context_variables": {}}))


def test_every_wrong_argument_is_named() -> None:
    assert read_refusal(weather, {"days": "soon", "unit": "K", "contry": "NO"}).problems == [
        "city is missing",
        'days should be a valid integer, unable to parse string as an integer, but is "soon"',
        "unit should be 'C' or 'F', but is \"K\"",
        '"contry" is unexpected (it takes city, days, unit)',
    ]


def test_wrong_argument_parts_named_by_path() -> None:
    def f(order: Order) -> None: ...

    assert read_refusal(f, {"order": {"lines": [1, "x"]}}).problems == [
        "order.id is missing",
        'order.lines[1] should be a valid integer, unable to parse string as an integer, but is "x"',
    ]
    assert read_refusal(f, {"order": {"id": "odd", "lines": []}}).problems == [
        "order.id: Value error, there is no such order"
    ]
    assert read_refusal(f, {"order": {"id": "broken", "lines": []}}).problems == [
        "order could not be read: KeyError: 'table'"
    ]


def test_long_problem_list_is_cut() -> None:
    def f(numbers: list[int]) -> None: ...

    problems = read_refusal(f, {"numbers": ["x" * 10_000] * 1_000}).problems
    assert len(problems) == 6
    assert len(" ".join(problems)) < 2_000


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ('{"city": "Oslo"', "they are not valid JSON: Expecting ',' delimiter at line 1, column 16"),
        ('{"city": \n Oslo}', "they are not valid JSON: Expecting value at line 2, column 2"),
        ("{} {}", "they are not valid JSON: Extra data at line 1, column 4"),
        ('{"city": "Os', "they are not valid JSON: Unterminated string starting at line 1, column 10"),
        ('{"city": "Oslo", "city": "Rome"}', "the key city is there more than once"),
        ('{"city": [{"\u202e": 1, "a": 2, "\u202e": 3}]}', "is there more than once"),
        ("[1, 2]", "they must be a JSON object, but are [1, 2]"),
        ('"Oslo"', 'they must be a JSON object, but are "Oslo"'),
        ("null", "they must be a JSON object, but are null"),
        ('{"city": NaN}', "arguments.city is the float nan, which JSON cannot hold"),
        ('{"city": 1e400}', "arguments.city is the float inf, which JSON cannot hold"),
        ('{"city": ' + "[" * 300 + "]" * 300 + "}", "is nested more than 200 levels deep"),
        ("[" * 200_000, "they are nested too deep"),
        ('{"days": ' + "9" * 5_000 + "}", "they hold a number with too many digits"),
    ],
)
def test_non_object_arguments_refused(arguments: str, problem: str) -> None:
    assert problem in str(read_refusal(weather, arguments))


def test_a_function_without_parameters_says_so() -> None:
    def now() -> None: ...

    assert read_refusal(now, {"zone": "UTC"}).problems == ['"zone" is unexpected (it takes no arguments)']


def test_wrong_names_cannot_break_the_message() -> None:
    message = str(read_refusal(weather, {"city": "x", "\ud800\n" + "y" * 10_000: 1}))
    assert message.encode()
    assert len(message) < 300


def test_methods_objects_and_wrappers_callable() -> None:
    class Counter:
        def __init__(self) -> None:
            self.n = 0

        def add(self, by: int) -> int:
            self.n += by
            return self.n

        __call__ = add

    counter = Counter()
    assert bind(counter.add, {"by": 2})() == 2
    assert bind(counter, {"by": 3})() == 5

    @functools.wraps(weather)
    def logged(*args: Any, **kwargs: Any) -> Any:
        return ["logged", weather(*args, **kwargs)]

    assert bind(logged, {"city": "Oslo"})() == ["logged", ("Oslo", 1, "C")]


async def fetch(url: str) -> str:
    await asyncio.sleep(0)
    return url


class Fetcher:
    async def __call__(self, url: str) -> str:
        return await fetch(url)

    async def fetch(self, url: str) -> str:
        return await fetch(url)


@pytest.mark.parametrize(
    "function",
    [fetch, Fetcher(), Fetcher().fetch, functools.partial(fetch), functools.partial(Fetcher())],
    ids=["function", "object", "method", "partial", "partial of object"],
)
async def test_all_async_functions_recognised(function: Any) -> None:
    assert Tool(function).is_async
    assert await bind(function, {"url": "x"})() == "x"


def test_plain_functions_are_not_async() -> None:
    assert not Tool(weather).is_async
    assert not Tool(functools.partial(weather, days=2)).is_async


def test_a_tool_carries_its_functions_options() -> None:
    undecorated = Tool(weather)
    assert (undecorated.requires_approval, undecorated.idempotent, undecorated.timeout) == (False, False, None)

    @tool(requires_approval=True, idempotent=True, timeout=5)
    def pay() -> None: ...

    decorated = Tool(pay)
    assert (decorated.name, decorated.requires_approval, decorated.idempotent, decorated.timeout) == (
        "pay",
        True,
        True,
        5.0,
    )


KINDS: dict[Any, st.SearchStrategy[Any]] = {
    str: TEXT,
    int: st.integers(),
    float: st.floats(allow_nan=False, allow_infinity=False),
    bool: st.booleans(),
    list: st.lists(JSON, max_size=3),
    dict: st.dictionaries(TEXT, JSON, max_size=3),
    list[str]: st.lists(TEXT),
    dict[str, int]: st.dictionaries(TEXT, st.integers()),
    int | None: st.none() | st.integers(),
}


@given(st.data(), st.lists(st.sampled_from(list(KINDS)), max_size=5))
def test_hinted_arguments_arrive_as_sent(data: st.DataObject, hints: list[Any]) -> None:
    names = [f"p{index}" for index in range(len(hints))]
    namespace: dict[str, Any] = {f"hint{index}": hint for index, hint in enumerate(hints)}
    listed = ", ".join(f"{name}: hint{index}" for index, name in enumerate(names))
    exec(f"def f({listed}): return dict(locals())", namespace)
    sent = {name: data.draw(KINDS[hint]) for name, hint in zip(names, hints, strict=True)}
    assert bind(namespace["f"], sent)() == sent


@given(TEXT)
def test_any_text_arguments_bound_or_refused(arguments: str) -> None:
    made = Tool(weather)
    try:
        made.bind(arguments, context_variables={}, tool_call_id="")
    except ToolArgumentsError as error:
        assert error.problems  # noqa: PT017


@given(JSON)
def test_any_json_arguments_bound_or_refused(value: Any) -> None:
    def f(a: str = "", b: int | list[Order] = 0, c: Place | None = None, **more: Any) -> None: ...

    for sent in (value, {"a": value, "b": value, "c": value}, {"b": [value], "c": {"city": value}}):
        try:
            bind(f, sent)
        except ToolArgumentsError as error:
            assert str(error).encode("utf-8", "surrogatepass")  # noqa: PT017


@pytest.mark.long
@given(st.dictionaries(TEXT, JSON))
def test_kwargs_take_all_but_the_context(given_arguments: dict[str, Any]) -> None:
    given_arguments.pop("context_variables", None)
    assert bind(echo, given_arguments)() == given_arguments
