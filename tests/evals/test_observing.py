"""Expectations compared with observed conversations."""

from __future__ import annotations

import pytest

from swarmkeep.evals.cases import Expect
from swarmkeep.evals.running import Observation, find_problems

OBSERVED = Observation(
    calls=[("find", {"id": 1}), ("buy", {"id": 1, "count": 2}), ("buy", {"id": 2, "count": 1}), ("broken", "{")],
    texts=["It costs 5 euros.", "Bought."],
    agent="Sales",
    context_variables={
        "order": {"id": 7, "paid": True},
        "cart": [],
        "seats": [True, {"window": False}],
        "rows": [[{"id": 1, "a": 1}], {"of": [{"id": 2, "b": 2}]}],
    },
    transcript="",
    output={"sku": "A", "count": 2},
    guardrails=("polite", "short"),
)

HOLDING = [
    Expect(),
    Expect(function="buy"),
    Expect(function=("find", "buy", "buy")),
    Expect(function="buy", arguments={"count": 2}),
    Expect(function="buy", arguments={"id": 2}),
    Expect(no_function=("sell",)),
    Expect(agent="Sales"),
    Expect(context={"order": {"id": 7}, "cart": []}),
    Expect(context={"seats": [True, {"window": False}]}),
    Expect(context={"seats": [True, {}]}),
    Expect(context={"rows": [[{"id": 1}], {"of": [{"id": 2}]}]}),
    Expect(text="BOUGHT"),
    Expect(text=("5 euros", r"/\d euros\.\nbought/")),
    Expect(no_text="sold"),
    Expect(output={"count": 2}),
    Expect(guardrail=("polite", "short"), no_guardrail="other"),
]
FAILING = [
    (Expect(function="sell"), "sell was not called; calls: find, buy, buy, broken"),
    (Expect(function=("buy", "find")), "find was not called in this order"),
    (Expect(function="buy", arguments={"count": 3}), "the arguments of buy.count: '1', not 3"),
    (Expect(function="buy", arguments={"size": 3}), "the arguments of buy: 'size' is missing"),
    (Expect(function="broken", arguments={"a": 1}), 'the arguments of broken: \'"{"\', not {"a": 1}'),
    (Expect(no_function="buy"), "buy was called"),
    (Expect(agent="Triage"), "the active agent is 'Sales', not 'Triage'"),
    (Expect(context={"order": {"paid": 1}}), "the context variables.order.paid: 'true', not 1"),
    (Expect(context={"seats": [1, {"window": False}]}), "the context variables.seats: item 1: 'true', not 1"),
    (Expect(context={"seats": [True, {"window": 0}]}), "the context variables.seats: item 2.window: 'false', not 0"),
    (Expect(context={"seats": [True]}), """the context variables.seats: '[true, {"window": false}]', not [true]"""),
    (Expect(context={"seats": [True, {}, 3]}), "the context variables.seats: "),
    (Expect(context={"cart": [1]}), "the context variables.cart: '[]', not [1]"),
    (Expect(context={"seats": {}}), "the context variables.seats: "),
    (Expect(context={"rows": [[{"id": 1}], {"of": [{"no": 2}]}]}), "rows: item 2.of: item 1: 'no' is missing"),
    (Expect(context={"order": {"when": 1}}), "the context variables.order: 'when' is missing"),
    (Expect(context={"refund": 1}), "the context variables: 'refund' is missing"),
    (Expect(text="sold"), "expected 'sold', but the answer was 'It costs 5 euros. Bought.'"),
    (Expect(output={"count": 3}), "the output.count: '2', not 3"),
    (Expect(output={"price": 3}), "the output: 'price' is missing"),
    (Expect(guardrail=("short", "polite")), "the guardrail polite refused nothing in this order; guardrails that did"),
    (Expect(guardrail="other"), "the guardrail other refused nothing; guardrails that did: polite, short"),
    (Expect(no_guardrail="short"), "the guardrail short refused something"),
    (Expect(no_text="/b.ught/"), "'/b.ught/' must not be said"),
]


@pytest.mark.parametrize("expect", HOLDING, ids=str)
def test_what_came_true_is_no_problem(expect: Expect) -> None:
    assert list(find_problems(expect, OBSERVED)) == []


@pytest.mark.parametrize(("expect", "said"), FAILING, ids=[said for _, said in FAILING])
def test_what_did_not_is_named(expect: Expect, said: str) -> None:
    (problem,) = find_problems(expect, OBSERVED)
    assert said in problem
