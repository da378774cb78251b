import functools
import inspect
import math
from typing import Any

import pytest
from pydantic import BaseModel

from swarmkeep.agent import Tool, tool
from swarmkeep.agent.tools import ToolOptions, get_options
from swarmkeep.agent.values import InvalidFunctionError


def test_the_decorated_function_is_the_function() -> None:
    def plain(x: int) -> int:
        return x + 1

    assert tool(plain) is plain
    assert tool(timeout=3)(plain) is plain
    assert plain(1) == 2
    assert not inspect.iscoroutinefunction(plain)


def test_bare_decoration_gives_the_defaults() -> None:
    @tool
    def plain() -> None: ...

    assert get_options(plain) == ToolOptions(requires_approval=False, idempotent=False, timeout=None)


def test_partials_and_wrappers_keep_options() -> None:
    @tool(requires_approval=True)
    def pay(amount: int) -> None: ...

    @functools.wraps(pay)
    def logged(*args: Any) -> None:
        pay(*args)

    for function in (pay, logged, functools.partial(pay, 1), functools.partial(functools.partial(pay), 1)):
        assert get_options(function).requires_approval


def test_partial_options_override_its_function() -> None:
    @tool(timeout=1)
    def pay(amount: int) -> None: ...

    slow = tool(functools.partial(pay, 1), timeout=60)
    assert (get_options(slow).timeout, get_options(pay).timeout) == (60, 1)
    assert get_options(functools.partial(slow)).timeout == 60


def test_callable_objects_take_options() -> None:
    class Pay:
        def __call__(self) -> None: ...

    class SafePay:
        @tool(idempotent=True)
        def __call__(self) -> None: ...

    class ModelPay(BaseModel):
        def __call__(self) -> str:
            return "paid"

    pay = Pay()
    assert tool(requires_approval=True)(pay) is pay
    assert get_options(pay).requires_approval
    assert not get_options(Pay()).requires_approval
    assert get_options(SafePay()).idempotent
    model = tool(requires_approval=True)(ModelPay())
    assert get_options(model).requires_approval
    assert (Tool(model).name, model()) == ("ModelPay", "paid")


def test_bound_method_options_spare_the_class() -> None:
    class Shop:
        def refund(self, amount: int) -> int:
            return amount

        @tool(timeout=2)
        def stock(self) -> int:
            return 0

    shop = Shop()
    refund = tool(requires_approval=True)(shop.refund)
    made = Tool(refund)
    assert (made.name, made.requires_approval) == ("refund", True)
    assert made.bind('{"amount": 3}', context_variables={}, tool_call_id="")() == 3
    assert not get_options(Shop().refund).requires_approval
    assert get_options(shop.stock).timeout == 2


@pytest.mark.parametrize("timeout", [0, -1, math.nan, math.inf, "5", True])
def test_timeout_is_positive_seconds(timeout: Any) -> None:
    with pytest.raises(ValueError, match="timeout must be a positive, finite number of seconds"):
        tool(timeout=timeout)


def test_only_functions_are_decorated() -> None:
    with pytest.raises(TypeError, match="decorates a function"):
        tool("pay")  # type: ignore[call-overload]


def test_summary_names_parameters_in_braces() -> None:
    @tool(summary="Refund {amount} to {customer} {{now}}")
    def refund(amount: int, customer: str) -> str:
        return f"{amount} {customer}"

    assert Tool(refund).summary == "Refund {amount} to {customer} {{now}}"

    with pytest.raises(InvalidFunctionError, match="its summary names 'size', which is no parameter"):
        Tool(tool(summary="Refund {size}")(refund))


@pytest.mark.parametrize(
    "summary", ["", " ", "x" * 201, 7, "Pay {", "Pay {}", "Pay {0.a}", "Pay {amount!r}", "Pay {a:>9}"]
)
def test_summary_that_is_no_sentence_is_refused(summary: Any) -> None:
    with pytest.raises(ValueError, match="summary"):
        tool(summary=summary)
