"""A made-up bookshop: triage hands over to sales or to refunds, and both can hand back.

Orders are kept in the context variable `orders`, by their id, beside `PAST_ORDERS`, which every customer has made.
"""

from typing import Any, Literal

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep_agents.references import make_reference

Genre = Literal["crime", "travel", "poetry", "cookery"]

BOOKS: dict[Genre, list[str]] = {
    "crime": ["The Ferryman's Alibi", "Nine Wet Umbrellas"],
    "travel": ["Slow Trains North", "A Harbour a Day"],
    "poetry": ["Salt and Semaphore"],
    "cookery": ["One Pot, Two Spoons", "The Patient Onion"],
}
PRICE = 15  # euros, for any book
HIGHEST_VOUCHER = 10  # euros

PAST_ORDERS: dict[str, dict[str, Any]] = {
    "BOOK-1001": {"title": "Slow Trains North", "price": PRICE, "status": "delivered"},
    "BOOK-1002": {"title": "The Patient Onion", "price": PRICE, "status": "delivered"},
}


def transfer_to_sales() -> Agent:
    """Hand over when the customer wants to buy or order a book, or have one recommended to read."""
    return sales_agent


def transfer_to_refunds() -> Agent:
    """Hand over when the customer wants to return a book, have an order refunded, or get money back."""
    return refunds_agent


def transfer_to_triage() -> Agent:
    """Hand back to triage when the topic is a different one, handled by another agent."""
    return triage_agent


def recommend_books(genre: Genre) -> dict[str, Any]:
    """Recommend books of a genre to read, and say what they cost.

    Args:
        genre: The kind of book that the customer likes.
    """
    return {"genre": genre, "books": BOOKS[genre], "price": PRICE}


@tool(idempotent=True)
def order_book(title: str, context_variables: dict[str, Any], tool_call_id: ToolCallId) -> str | Result:
    """Order a book that the customer wants to buy.

    Args:
        title: The title of the book.
    """
    titles = [book for books in BOOKS.values() for book in books]
    found = next((book for book in titles if book.casefold() in title.casefold()), None)
    if found is None:
        return f"The shop has no book called {title!r}. It has {', '.join(titles)}."
    order_id = make_reference("BOOK", tool_call_id)
    order = {"title": found, "price": PRICE, "status": "ordered"}
    return Result(
        value=f"Order {order_id}: {found}, {PRICE} euros.",
        context_variables={"orders": {**context_variables.get("orders", {}), order_id: order}, "order_id": order_id},
    )


@tool(idempotent=True)
def process_refund(order_id: str, context_variables: dict[str, Any], reason: str = "not given") -> str | Result:
    """Refund an order: the customer returns it and gets the money back.

    Args:
        order_id: Which one to refund, such as BOOK-1001.
        reason: Why the customer returns the book.
    """
    orders = context_variables.get("orders", {})
    order_id = order_id.upper()
    order = orders.get(order_id) or PAST_ORDERS.get(order_id)
    if order is None:
        return f"There is no order {order_id}, so nothing was refunded."
    if order["status"] == "refunded":
        return f"Order {order_id} ({order['title']}) has been refunded already."
    refunded = {**order, "status": "refunded", "reason": reason}
    return Result(
        value=f"Order {order_id} ({order['title']}) is refunded: {order['price']} euros.",
        context_variables={"orders": {**orders, order_id: refunded}},
    )


def offer_voucher(amount: int) -> str | Result:
    """Offer a voucher or discount to a customer who keeps the book after all.

    Args:
        amount: What the voucher is worth, in euros.
    """
    if not 1 <= amount <= HIGHEST_VOUCHER:
        return f"A voucher is worth 1 to {HIGHEST_VOUCHER} euros, not {amount}."
    return Result(value=f"The voucher is worth {amount} euros.", context_variables={"voucher": amount})


triage_agent = Agent(
    name="Triage Agent",
    instructions="You answer the door of a small bookshop. Find out who can help the customer, and hand over to them.",
    functions=[transfer_to_sales, transfer_to_refunds],
)

sales_agent = Agent(
    name="Sales Agent",
    instructions=(
        "You love the books you sell. Recommend one or two that fit, with one sentence each, "
        "and order what the customer has chosen."
    ),
    functions=[recommend_books, order_book, transfer_to_triage],
)

refunds_agent = Agent(
    name="Refunds Agent",
    instructions=(
        "You take books back. Ask which order it is and why it comes back. If the customer only finds the book "
        "too expensive, offer a voucher first. Refund the order if they still want to return it."
    ),
    functions=[process_refund, offer_voucher, transfer_to_triage],
)
