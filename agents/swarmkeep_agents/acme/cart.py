"""Add up a cart of quoted lines, and refuse an order that does not fit it."""

from typing import Any

from swarmkeep_agents.acme.catalogue import find_products, format_euros

Line = dict[str, Any]  # item_id, name, quantity, price


def sum_lines(lines: list[Line]) -> float:
    return float(sum(line["quantity"] * line["price"] for line in lines))


def format_lines(lines: list[Line]) -> str:
    return ", ".join(f"{line['quantity']} x {line['name']}" for line in lines)


def explain_refusal(cart: list[Line], product: str, price: float | None) -> str | None:
    """Why a cart is not ordered, where the customer agreed to this product and price; None if it can be."""
    if not cart:
        return "The cart is empty: ask what a product costs, and it goes in there. Nothing was ordered."
    if product and not {item.item_id for item in find_products(product)} & {line["item_id"] for line in cart}:
        return f"{product!r} is not in the cart: ask what it costs first. Nothing was ordered."
    if price is not None and abs(price - sum_lines(cart)) >= 0.005:
        return f"The cart costs {format_euros(sum_lines(cart))}, not {format_euros(price)}. Nothing was ordered."
    return None
