"""Schemas of functions whose hints are objects; `test_string_hints.py` has those whose hints are strings."""

import functools
import sys
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from keyword import iskeyword
from typing import Annotated, Any, Literal, Optional
from typing import TypedDict as StandardTypedDict

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from swarmkeep.agent import FunctionSchemaError, InvalidFunctionError, ToolCallId, function_schema


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Line(BaseModel):
    """One line of an order."""

    title: str
    count: int = 1
    colour: Colour = Colour.RED


class Order(BaseModel):
    id: str
    lines: list[Line]


class Tree(BaseModel):
    children: list["Tree"] = []


@dataclass
class Place:
    city: str
    zip: int | None = None


class Filter(TypedDict, total=False):
    field: str


NO_CALL = ToolCallId("")


def read_parameters(function: Callable[..., Any]) -> Any:
    return function_schema(function)["function"]["parameters"]


def describe_hint(hint: Any, default: Any = ...) -> Any:
    """The schema of one parameter `x`, and the definitions beside it."""

    def f(x): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"x": hint}
    if default is not ...:
        f.__defaults__ = (default,)
    made = read_parameters(f)
    return made["properties"]["x"]


def test_plain_hints_match_swarm() -> None:
    def book(a, b: str, c: int, d: float, e: bool, f: list, g: dict, h: type(None), i=1, j: str = "x"):  # type: ignore  # noqa: PGH003
        """Book a flight.

        Only for members.
        """

    assert function_schema(book) == {
        "type": "function",
        "function": {
            "name": "book",
            # As it stands, which since Python 3.13 is without the indentation.
            "description": book.__doc__,
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "string"},
                    "b": {"type": "string"},
                    "c": {"type": "integer"},
                    "d": {"type": "number"},
                    "e": {"type": "boolean"},
                    "f": {"type": "array"},
                    "g": {"type": "object"},
                    "h": {"type": "null"},
                    "i": {"type": "string"},
                    "j": {"type": "string"},
                },
                "required": ["a", "b", "c", "d", "e", "f", "g", "h"],
            },
        },
    }


def test_bare_function_has_empty_schema() -> None:
    def done(): ...  # type: ignore[no-untyped-def]

    assert function_schema(done)["function"] == {
        "name": "done",
        "description": "",
        "parameters": {"type": "object", "properties": {}, "required": []},
    }


def test_loop_filled_parameters_hidden_from_model() -> None:
    def pay(
        context_variables: dict[str, Any],
        amount: int,
        call: ToolCallId,
        maybe: ToolCallId | None = None,
        old: Optional[ToolCallId] = None,  # noqa: UP045
        noted: Annotated[ToolCallId, "the key"] = NO_CALL,
        *rest: str,
        **more: str,
    ) -> None: ...

    assert read_parameters(pay) == {
        "type": "object",
        "properties": {"amount": {"type": "integer"}},
        "required": ["amount"],
    }


def test_local_context_variables_is_no_parameter() -> None:
    def f(x: str) -> str:
        context_variables = [x]
        return context_variables.pop()

    assert list(read_parameters(f)["properties"]) == ["x"]


@pytest.mark.parametrize(
    ("hint", "schema"),
    [
        (list[str], {"type": "array", "items": {"type": "string"}}),
        (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}),
        (Literal["a", "b"], {"type": "string", "enum": ["a", "b"]}),
        (Colour, {"type": "string", "enum": ["red", "blue"]}),
        (Optional[str], {"anyOf": [{"type": "string"}, {"type": "null"}]}),  # noqa: UP045
        (int | str, {"anyOf": [{"type": "integer"}, {"type": "string"}]}),
        (Annotated[int, Field(ge=1, description="n")], {"type": "integer", "minimum": 1, "description": "n"}),
        (Any, {}),
        (
            Line,
            {
                "type": "object",
                "description": "One line of an order.",
                "properties": {
                    "title": {"type": "string"},
                    "count": {"type": "integer", "default": 1},
                    "colour": {"$ref": "#/$defs/Colour", "default": "red"},
                },
                "required": ["title"],
            },
        ),
        (
            Place,
            {
                "type": "object",
                "properties": {
                    "city": {"type": "string"},
                    "zip": {"anyOf": [{"type": "integer"}, {"type": "null"}], "default": None},
                },
                "required": ["city"],
            },
        ),
        (Filter, {"type": "object", "properties": {"field": {"type": "string"}}}),
    ],
)  # fmt: skip
def test_rich_hints_give_titleless_json_schema(hint: Any, schema: dict[str, Any]) -> None:
    assert describe_hint(hint) == schema


@pytest.mark.parametrize(("hint", "default"), [(int, 3), (int | None, None), (Colour, Colour.RED), (list[str], [])])
def test_default_makes_parameter_optional_and_hidden(hint: Any, default: Any) -> None:
    def f(x): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"x": hint}
    f.__defaults__ = (default,)
    assert read_parameters(f)["required"] == []
    assert "default" not in read_parameters(f)["properties"]["x"]


def test_shared_definitions_are_hoisted() -> None:
    def f(one: Order, many: list[Order], tree: Tree, note: str) -> None: ...

    made = read_parameters(f)
    assert set(made["$defs"]) == {"Colour", "Line", "Order", "Tree"}
    assert made["properties"]["one"]["properties"]["lines"]["items"] == {"$ref": "#/$defs/Line"}
    assert made["properties"]["many"]["items"] == {"$ref": "#/$defs/Order"}
    assert made["properties"]["tree"] == {"$ref": "#/$defs/Tree"}  # recursive: it cannot be written out
    assert made["properties"]["note"] == {"type": "string"}


def test_inlined_definition_is_not_kept() -> None:
    def f(colour: Colour) -> None: ...

    assert "$defs" not in read_parameters(f)


def test_same_named_types_get_two_definitions() -> None:
    def other() -> type[BaseModel]:
        class Line(BaseModel):
            other: bool

        return Line

    def f(a, b): ...  # type: ignore[no-untyped-def]

    f.__annotations__ = {"a": list[Line], "b": list[other()]}  # type: ignore[misc]
    made = read_parameters(f)
    a, b = (made["$defs"][made["properties"][p]["items"]["$ref"].removeprefix("#/$defs/")] for p in "ab")
    assert "count" in a["properties"]
    assert "other" in b["properties"]


GOOGLE = """Look up an order.

    Args:
        order_id (str): The id, as printed
            on the invoice.
        limit: How many lines.
    """
NUMPY = """Look up an order.

    Parameters
    ----------
    order_id : str
        The id, as printed on the invoice.
    limit : int
        How many lines.
    """
REST = """Look up an order.

    :param order_id: The id, as printed on the invoice.
    :param limit: How many lines.
    """
EPYDOC = """Look up an order.

    @param order_id: The id, as printed on the invoice.
    @param limit: How many lines.
    """


@pytest.mark.parametrize("docstring", [GOOGLE, NUMPY, REST, EPYDOC], ids=["google", "numpy", "rest", "epydoc"])
def test_docstring_section_describes_parameters(docstring: str) -> None:
    def lookup(order_id: str, context_variables: dict[str, Any], limit: int = 3) -> None: ...

    lookup.__doc__ = docstring
    made = function_schema(lookup)["function"]
    assert made["description"] == docstring
    assert made["parameters"]["properties"] == {
        "order_id": {"type": "string", "description": "The id, as printed on the invoice."},
        "limit": {"type": "integer", "description": "How many lines."},
    }


def test_hint_description_precedes_docstring_and_type() -> None:
    def f(a: Annotated[int, Field(description="from the hint")], b: Line, c: Tree) -> None:
        """Do.

        Args:
            a: from the docstring
            b: from the docstring
            c: from the docstring
        """

    made = read_parameters(f)["properties"]
    assert made["a"]["description"] == "from the hint"
    assert made["b"]["description"] == "from the docstring"
    assert made["c"] == {"$ref": "#/$defs/Tree", "description": "from the docstring"}


@given(st.text())
def test_any_docstring_is_the_description(docstring: str) -> None:
    def f(x: str) -> None: ...

    f.__doc__ = "x\n" + docstring
    assert function_schema(f)["function"]["description"] == "x\n" + docstring


def test_partial_hides_its_bound_arguments() -> None:
    def send(to: str, subject: str, body: str = "", *, urgent: bool) -> None:
        """Send a mail."""

    made = function_schema(functools.partial(functools.partial(send, "me"), urgent=True))["function"]
    assert (made["name"], made["description"]) == ("send", "Send a mail.")
    assert made["parameters"] == {
        "type": "object",
        "properties": {"subject": {"type": "string"}, "body": {"type": "string"}},
        "required": ["subject"],
    }


def test_partial_may_have_own_name() -> None:
    def send(to: str) -> None: ...

    mine = functools.partial(send, "me")
    mine.__name__ = "send_to_me"  # type: ignore[attr-defined]
    assert function_schema(mine)["function"]["name"] == "send_to_me"


def test_callable_object_described_by_its_class() -> None:
    class Lookup:
        """Of the class."""

        def __call__(self, key: str) -> str:
            return key

    class Described(Lookup):
        def __call__(self, key: str) -> str:
            """Of the call."""
            return key

    @dataclass
    class Configured:
        secret_table: str

        def __call__(self, key: str) -> str:
            return key

    named = Lookup()
    named.__name__ = "find"  # type: ignore[attr-defined]
    told = [function_schema(f)["function"] for f in (Lookup(), Described(), Configured("t"), named)]
    assert [(f["name"], f["description"]) for f in told] == [
        ("Lookup", "Of the class."),
        ("Described", "Of the call."),
        ("Configured", ""),
        ("find", "Of the class."),
    ]
    assert all(f["parameters"]["required"] == ["key"] for f in told)


def test_wrapped_function_shown_as_its_original() -> None:
    def find(key: int) -> int:
        """Find it."""
        return key

    @functools.wraps(find)
    def logged(*args: Any, **kwargs: Any) -> int:
        return find(*args, **kwargs)

    assert function_schema(logged) == function_schema(functools.lru_cache(find)) == function_schema(find)


def test_a_bound_method_leaves_self_out() -> None:
    class Shop:
        def stock(self, item: str) -> int:
            """What is left."""
            return 0

        @classmethod
        def open(cls, hour: int) -> bool:
            return True

    assert list(read_parameters(Shop().stock)["properties"]) == ["item"]
    assert function_schema(Shop.open)["function"]["name"] == "open"


class Plain:
    """No model: pydantic knows nothing of it."""


@pytest.mark.parametrize(
    "hint", [Plain, Callable[[int], int], list[Plain], 5, "not a hint", "Missing", list["Missing"], Plain | None]  # type: ignore[name-defined]  # noqa: F821
)  # fmt: skip
def test_hint_without_schema_refused_by_name(hint: Any) -> None:
    def ship(order: str, to): ...  # type: ignore[no-untyped-def]

    ship.__annotations__ = {"order": str, "to": hint}
    with pytest.raises(FunctionSchemaError) as refused:
        function_schema(ship)
    assert (refused.value.function, refused.value.parameter) == ("ship", "to")
    assert str(refused.value).startswith("parameter 'to' of ship: its hint ")
    assert "https://" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic reads it from Python 3.12 on")
def test_standard_typed_dict_refused_with_alternative() -> None:
    class Old(StandardTypedDict):
        field: str

    with pytest.raises(FunctionSchemaError, match=r"use `typing_extensions\.TypedDict`"):
        describe_hint(Old)


def test_the_context_may_have_any_hint() -> None:
    def f(context_variables: "Missing") -> "Missing": ...  # type: ignore[name-defined]  # noqa: F821

    assert read_parameters(f)["properties"] == {}


def test_unserializable_default_omitted_without_warning() -> None:
    class Price(BaseModel):
        amount: Decimal = Decimal("NaN")
        check: int | Callable[[], int] = 3

    assert describe_hint(Price)["properties"].keys() == {"amount", "check"}


def test_non_tool_has_no_schema() -> None:
    with pytest.raises(InvalidFunctionError) as refused:
        function_schema(lambda x: x)
    assert refused.value.agent is None


NAMES = st.text("abcdefgh_", min_size=1, max_size=8).filter(lambda name: name not in ("_", "f") and not iskeyword(name))
PLAIN = st.sampled_from(
    [(str, "string"), (int, "integer"), (float, "number"), (bool, "boolean"), (list, "array"), (dict, "object")]
)


@given(st.dictionaries(NAMES, st.tuples(PLAIN, st.booleans())))
def test_signature_gives_types_and_required_names(wanted: dict[str, tuple[tuple[type, str], bool]]) -> None:
    listed = ", ".join(
        f"{n}: {t.__name__}" + (" = None" if optional else "") for n, ((t, _), optional) in wanted.items()
    )
    namespace: dict[str, Any] = {}
    exec(f"def f(*, {listed}): ..." if listed else "def f(): ...", namespace)
    made = read_parameters(namespace["f"])
    assert made == {
        "type": "object",
        "properties": {name: {"type": kind} for name, ((_, kind), _) in wanted.items()},
        "required": [name for name, (_, optional) in wanted.items() if not optional],
    }
    assert list(made["properties"]) == list(wanted)
