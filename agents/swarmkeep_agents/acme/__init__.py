"""Acme, a made-up outdoor shop: triage hands over to sales, to issues and repairs, or to people.

What happens is kept in context variables: `cart`, `orders`, `refunds`, `repairs` and `tickets`, each beside the id
of the latest (`order_id`, `refund_id`, `repair_id`, `ticket_id`). Callers may give `user_name`.
"""

from typing import Any

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep_agents.acme.cart import explain_refusal, format_lines, sum_lines
from swarmkeep_agents.acme.catalogue import CATALOGUE, explain_unknown, find_products, format_euros
from swarmkeep_agents.references import make_reference

MOST_OF_ONE_PRODUCT = 20

# Instructions. One that depends on the conversation is a function of its context variables.


def triage_instructions(context_variables: dict[str, Any]) -> str:
    return (
        "You are the first voice of Acme, a shop for tents, lanterns and other things to take outdoors. "
        f"You are speaking with {context_variables.get('user_name', 'a customer')}. "
        "Find out in one or two short questions what they came for, then hand over to whoever deals with it. "
        "You sell nothing and settle nothing yourself."
    )


SALES_INSTRUCTIONS = (
    "You are a salesperson at Acme. Advise only on what the catalogue holds. "
    "Selling takes two steps: quote the price, which also puts the product into the cart; "
    "then, once the customer has agreed to that price, place the order. Never order what was not agreed to."
)

ISSUES_INSTRUCTIONS = (
    "You look after customers whose Acme purchase gives them trouble. Say that you are sorry once, not more. "
    "Find out which item it is, looking it up if they do not know its item id, and what is wrong with it. "
    "Offer a repair first. If they would rather have their money, refund the item and give the reason. "
    "Hand the conversation to a human if you cannot settle it."
)


def escalation_instructions(context_variables: dict[str, Any]) -> str:
    return (
        "You keep customers company who wait for a human at Acme. "
        f"Their ticket is {context_variables.get('ticket_id', 'not open yet')}. "
        "Name it, add to it what they tell you, and promise no times and no outcomes."
    )


# Handoffs: a function that returns an agent makes it the active one.


def transfer_to_sales() -> Agent:
    """Hand over when the customer wants to buy or order something, or asks how much it costs or what the catalogue
    holds: tents, lanterns, stoves, backpacks, boots, kettles."""
    return sales


def transfer_to_issues_and_repairs() -> Agent:
    """Hand over when something the customer bought is broken, damaged or faulty, has stopped working, or should be
    repaired, returned, refunded or reimbursed."""
    return issues_and_repairs


def transfer_to_triage() -> Agent:
    """Hand back to triage when the topic is a different one, handled by another agent."""
    return triage


@tool(idempotent=True)
def escalate_to_human(summary: str, context_variables: dict[str, Any], tool_call_id: ToolCallId) -> Result:
    """Open a ticket for a human, when the customer asks for a person or a manager, or nobody here can settle it.

    Args:
        summary: What happened and what the customer expects, in a sentence or two.
    """
    ticket_id = make_reference("TICKET", tool_call_id)
    ticket = {"summary": summary, "status": "waiting for a human", "notes": []}
    return Result(
        value=f"Ticket {ticket_id} is open. A human will read it and answer.",
        agent=escalation,
        context_variables=_add_record(context_variables, "ticket", ticket_id, ticket),
    )


# Sales.


def look_up_catalogue(query: str) -> dict[str, Any]:
    """Search the catalogue: which products are for sale, in stock or available.

    Args:
        query: What the customer is looking for, such as a tent, a lantern or a stove.
    """
    found = find_products(query)
    if not found:
        return {"found": [], "note": "Nothing matches these words.", "for_sale": [item.name for item in CATALOGUE]}
    return {"found": [product.describe() for product in found]}


def quote_price(product: str, context_variables: dict[str, Any], quantity: int = 1) -> str | Result:
    """Quote a price and put the product into the cart, when the customer wants to buy it or asks how much it costs.

    Args:
        product: The product, by name or item id: a tent, lantern, stove, backpack, boots or kettle.
        quantity: How many pieces.
    """
    found = find_products(product)
    if not found:
        return explain_unknown(product)
    if not found[0].in_stock:
        return f"The {found[0].name} is sold out, so it cannot be ordered now."
    if not 1 <= quantity <= MOST_OF_ONE_PRODUCT:
        return f"Acme sells 1 to {MOST_OF_ONE_PRODUCT} of a product at a time, not {quantity}."
    line = {"item_id": found[0].item_id, "name": found[0].name, "quantity": quantity, "price": found[0].price}
    others = [other for other in context_variables.get("cart", []) if other["item_id"] != line["item_id"]]
    cart = [*others, line]
    return Result(
        value=f"{format_lines([line])}: {format_euros(sum_lines([line]))}. "
        f"The cart comes to {format_euros(sum_lines(cart))}. Nothing is ordered yet.",
        context_variables={"cart": cart},
    )


@tool(requires_approval=True, idempotent=True)
def place_order(
    context_variables: dict[str, Any], tool_call_id: ToolCallId, product: str = "", price: float | None = None
) -> str | Result:
    """Place the order for all that is in the cart, once the customer has said yes to the quoted price.

    Args:
        product: A product that has to be in the cart, by name or item id.
        price: The total in euros that the customer agreed to; if it is not what the cart costs, nothing is ordered.
    """
    order_id = make_reference("ORD", tool_call_id)
    if order_id in context_variables.get("orders", {}):
        return f"Order {order_id} has been placed already."
    cart = context_variables.get("cart", [])
    if problem := explain_refusal(cart, product, price):
        return problem
    order = {"items": cart, "total": sum_lines(cart), "status": "placed"}
    return Result(
        value=f"Order {order_id} is placed: {format_lines(cart)}, {format_euros(sum_lines(cart))} in all.",
        context_variables={**_add_record(context_variables, "order", order_id, order), "cart": []},
    )


# Issues and repairs.


def look_up_item(search_query: str) -> dict[str, Any]:
    """Find the item id and the warranty of something that the customer has bought.

    Args:
        search_query: A description of the item: its name, or any words the customer has for it.
    """
    return {"found": [product.describe() for product in find_products(search_query)]}


@tool(idempotent=True)
def execute_refund(
    item_id: str, context_variables: dict[str, Any], tool_call_id: ToolCallId, reason: str = "not given"
) -> str | Result:
    """Refund an item: the customer returns it and gets the money back.

    Args:
        item_id: Which item to refund, such as LAMP-1.
        reason: Why the customer wants a refund.
    """
    found = find_products(item_id)
    if not found:
        return explain_unknown(item_id)
    refunds = context_variables.get("refunds", {})
    refund_id = next((key for key, refund in refunds.items() if refund["item_id"] == found[0].item_id), None)
    if refund_id is not None:
        return f"The {found[0].name} has been refunded already; the refund is {refund_id}."
    refund_id = make_reference("REF", tool_call_id)
    refund = {"item_id": found[0].item_id, "amount": found[0].price, "reason": reason}
    return Result(
        value=f"Refund {refund_id}: {format_euros(found[0].price)} for the {found[0].name}. Reason: {reason}.",
        context_variables=_add_record(context_variables, "refund", refund_id, refund),
    )


@tool(idempotent=True)
def book_repair(
    item_id: str, problem: str, context_variables: dict[str, Any], tool_call_id: ToolCallId
) -> str | Result:
    """Book a repair in the workshop for an item that is broken, damaged or faulty, or has stopped working.

    Args:
        item_id: Which item to repair, such as STOVE-3.
        problem: What is wrong with it.
    """
    found = find_products(item_id)
    if not found:
        return explain_unknown(item_id)
    repair_id = make_reference("REP", tool_call_id)
    repair = {"item_id": found[0].item_id, "problem": problem, "status": "waiting for the item"}
    return Result(
        value=f"Repair {repair_id} is booked for the {found[0].name}, free of charge in its first "
        f"{found[0].warranty_months} months. Please send it in with that number on the parcel.",
        context_variables=_add_record(context_variables, "repair", repair_id, repair),
    )


# Escalation.


def check_ticket(context_variables: dict[str, Any]) -> dict[str, Any] | str:
    """Read the ticket that waits for a human: its number, status, summary and notes."""
    ticket_id = context_variables.get("ticket_id")
    return {"ticket_id": ticket_id, **context_variables["tickets"][ticket_id]} if ticket_id else "No ticket is open."


def add_note_to_ticket(note: str, context_variables: dict[str, Any]) -> str | Result:
    """Add a note to the ticket, with more details, a phone number or anything else that a human should know.

    Args:
        note: What to write down.
    """
    ticket_id = context_variables.get("ticket_id")
    if not ticket_id:
        return "No ticket is open, so there is nothing to add to."
    ticket = context_variables["tickets"][ticket_id]
    ticket = {**ticket, "notes": [*ticket["notes"], note]}
    return Result(
        value=f"Written into ticket {ticket_id}.",
        context_variables=_add_record(context_variables, "ticket", ticket_id, ticket),
    )


# The team. The first agent is the one that a conversation starts with.

triage = Agent(
    name="Triage Agent",
    instructions=triage_instructions,
    functions=[transfer_to_sales, transfer_to_issues_and_repairs, escalate_to_human],
)

sales = Agent(
    name="Sales Agent",
    instructions=SALES_INSTRUCTIONS,
    functions=[look_up_catalogue, quote_price, place_order, transfer_to_triage, escalate_to_human],
)

issues_and_repairs = Agent(
    name="Issues and Repairs Agent",
    instructions=ISSUES_INSTRUCTIONS,
    functions=[look_up_item, execute_refund, book_repair, transfer_to_triage, escalate_to_human],
)

escalation = Agent(
    name="Escalation Agent",
    instructions=escalation_instructions,
    functions=[check_ticket, add_note_to_ticket, transfer_to_triage],
)


def _add_record(context_variables: dict[str, Any], kind: str, key: str, record: dict[str, Any]) -> dict[str, Any]:
    """The changes that keep a record among those of its kind, and name it as the latest."""
    return {f"{kind}s": {**context_variables.get(f"{kind}s", {}), key: record}, f"{kind}_id": key}
