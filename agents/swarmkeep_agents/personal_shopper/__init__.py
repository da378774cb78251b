"""A personal shopper for a small made-up clothes shop: triage over a sales agent and a refunds agent.

Purchases, refunds and notifications are real rows in `personal_shopper.db`, see `shop.py`. Who the customer is says the
caller, by the context variable `user_id` (by default 1): what the model says about that counts for nothing.
"""

from sqlite3 import Connection
from typing import Any, Literal

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep_agents.personal_shopper import shop
from swarmkeep_agents.personal_shopper.shop import format_euros, records
from swarmkeep_agents.triaging import connect_triage

SALES_INSTRUCTIONS = (
    "You advise customers of a small clothes shop, in a few warm words. Look at what there is before you recommend "
    "anything, and never sell what is out of stock. Name the price, and order only what the customer has agreed to buy."
)
REFUNDS_INSTRUCTIONS = (
    "You give customers their money back. Look at their purchases to find out which one it is, and ask why they return "
    "it. A colleague confirms each refund. Tell the customer its number, and offer to notify them by e-mail or phone."
)
TRIAGE_INSTRUCTIONS = (
    "You welcome the customers of a small clothes shop. Find out whether they want to buy something or to give "
    "something back, and hand over. If it is neither, say what the shop does."
)


def _read_user_id(context_variables: dict[str, Any]) -> int:
    given = context_variables.get("user_id", 1)
    if not isinstance(given, int) or shop.find_user(given) is None:
        raise ValueError(f"the shop has no user {given!r}")
    return given


def list_products() -> dict[str, Any]:
    """List the products that are for sale, with price and stock, to recommend something to wear."""
    return {"products": shop.read_products()}


def look_up_purchases(context_variables: dict[str, Any]) -> dict[str, Any]:
    """Look up the history of what the customer has bought, with purchase ids, prices, and what was refunded."""
    return {"purchases": shop.read_purchases(_read_user_id(context_variables))}


@tool(idempotent=True)
def buy_product(product: str, context_variables: dict[str, Any], tool_call_id: ToolCallId) -> str | Result:
    """Buy a product for the customer, who has agreed to its price.

    Args:
        product: Its name, such as rain jacket, or its product id.
    """
    user_id = _read_user_id(context_variables)

    def act(db: Connection) -> str:
        found = shop.find_product(product, db)
        if found is None:
            return f"The shop has no {product!r}. Nothing was bought."
        if not found["stock"]:
            return f"The {found['name']} is out of stock. Nothing was bought."
        db.execute("UPDATE products SET stock = stock - 1 WHERE product_id = ?", (found["product_id"],))
        values = (user_id, found["product_id"], found["cents"])
        number = db.execute("INSERT INTO purchases (user_id, product_id, cents) VALUES (?, ?, ?)", values).lastrowid
        return f"Bought: {found['name']} for {format_euros(found['cents'])}. The purchase id is {number}."

    return records.perform_once(tool_call_id, ["buy", user_id, product], act)


@tool(requires_approval=True, idempotent=True)
def refund_purchase(
    purchase_id: int, context_variables: dict[str, Any], tool_call_id: ToolCallId, reason: str = "not given"
) -> str:
    """Refund a purchase: the customer returns it and gets the money back.

    Args:
        purchase_id: Which purchase, such as 102.
        reason: Why it comes back.
    """
    user_id = _read_user_id(context_variables)

    def act(db: Connection) -> str:
        query = "SELECT cents FROM purchases WHERE purchase_id = ? AND user_id = ?"
        found = db.execute(query, (purchase_id, user_id)).fetchone()
        if found is None:
            return f"The customer has no purchase {purchase_id}. Nothing was refunded."
        if db.execute("SELECT 1 FROM refunds WHERE purchase_id = ?", (purchase_id,)).fetchone():
            return f"Purchase {purchase_id} has been refunded already."
        values = (purchase_id, found["cents"], reason)
        number = db.execute("INSERT INTO refunds (purchase_id, cents, reason) VALUES (?, ?, ?)", values).lastrowid
        return f"Refund {number}: {format_euros(found['cents'])} for purchase {purchase_id}."

    return records.perform_once(tool_call_id, ["refund", user_id, purchase_id], act)


@tool(idempotent=True)
def notify_customer(
    channel: Literal["email", "phone"], message: str, context_variables: dict[str, Any], tool_call_id: ToolCallId
) -> str:
    """Notify the customer by e-mail or by phone, who has asked to be told.

    Args:
        channel: How: by email or by phone.
        message: What to tell them.
    """
    user_id = _read_user_id(context_variables)

    def act(db: Connection) -> str:
        address = db.execute(f"SELECT {channel} FROM users WHERE user_id = ?", (user_id,)).fetchone()[0]
        columns = "INSERT INTO notifications (user_id, channel, address, message) VALUES (?, ?, ?, ?)"
        number = db.execute(columns, (user_id, channel, address, message)).lastrowid
        return f"Notification {number} to {address} waits to be sent."

    return records.perform_once(tool_call_id, ["notify", user_id, channel, message], act)


# The team. The first agent is the one that a conversation starts with. The helper gives it a handoff to each of the
# others, and each of them one back.

triage_agent = Agent(name="Shop Triage Agent", instructions=TRIAGE_INSTRUCTIONS)

sales_agent = Agent(name="Shop Sales Agent", instructions=SALES_INSTRUCTIONS, functions=[list_products, buy_product])

refunds_agent = Agent(
    name="Shop Refunds Agent",
    instructions=REFUNDS_INSTRUCTIONS,
    functions=[look_up_purchases, refund_purchase, notify_customer],
)

connect_triage(
    triage_agent,
    {
        "the customer wants to buy something: products, prices, a recommendation": sales_agent,
        "the customer wants to return a purchase, have it refunded, or get money back": refunds_agent,
    },
)
