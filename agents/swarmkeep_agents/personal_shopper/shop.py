"""The shop: users, products, purchases, refunds and notifications, in `personal_shopper.db`. All of it is made up."""

import sqlite3
from typing import Any

from swarmkeep_agents.records import Records

TABLES = (
    """CREATE TABLE users (
        user_id INTEGER PRIMARY KEY, name TEXT NOT NULL, email TEXT NOT NULL, phone TEXT NOT NULL)""",
    """CREATE TABLE products (
        product_id INTEGER PRIMARY KEY, name TEXT NOT NULL, cents INTEGER NOT NULL, stock INTEGER NOT NULL
        CHECK (stock >= 0))""",
    """CREATE TABLE purchases (
        purchase_id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users,
        product_id INTEGER NOT NULL REFERENCES products, cents INTEGER NOT NULL, bought_on TEXT NOT NULL
        DEFAULT CURRENT_DATE)""",
    # Unique: money for a purchase goes back once, whoever asks and however often.
    """CREATE TABLE refunds (
        refund_id INTEGER PRIMARY KEY, purchase_id INTEGER NOT NULL UNIQUE REFERENCES purchases,
        cents INTEGER NOT NULL, reason TEXT NOT NULL)""",
    """CREATE TABLE notifications (
        notification_id INTEGER PRIMARY KEY, user_id INTEGER NOT NULL REFERENCES users, channel TEXT NOT NULL,
        address TEXT NOT NULL, message TEXT NOT NULL, status TEXT NOT NULL DEFAULT 'waiting')""",
)
USERS = (
    (1, "Robin Vale", "robin@example.com", "+44 20 7946 0101"),
    (2, "Sam Okoye", "sam@example.com", "+44 20 7946 0102"),
)
PRODUCTS = (
    (1, "wool scarf", 2900, 12),
    (2, "rain jacket", 8900, 5),
    (3, "canvas shoes", 5400, 8),
    (4, "straw hat", 2300, 1),
    (5, "linen shirt", 4600, 0),
)
PURCHASES = ((101, 1, 1, 2900, "2031-01-09"), (102, 1, 3, 5400, "2031-02-17"), (103, 2, 2, 8900, "2031-02-20"))


def _fill(connection: sqlite3.Connection) -> None:
    connection.executemany("INSERT INTO users VALUES (?, ?, ?, ?)", USERS)
    connection.executemany("INSERT INTO products VALUES (?, ?, ?, ?)", PRODUCTS)
    connection.executemany("INSERT INTO purchases VALUES (?, ?, ?, ?, ?)", PURCHASES)


records = Records("personal_shopper.db", TABLES, _fill)


def find_user(user_id: int) -> dict[str, Any] | None:
    return records.row("SELECT * FROM users WHERE user_id = ?", user_id)


def read_products() -> list[dict[str, Any]]:
    found = records.rows("SELECT product_id, name, cents, stock FROM products ORDER BY product_id")
    return [_format_price(row) for row in found]


def find_product(text: str, connection: sqlite3.Connection) -> dict[str, Any] | None:
    """The product that a text names, or whose id it is. A name in part will not do: it is about money."""
    words = " ".join(text.lower().split())
    found = [dict(row) for row in connection.execute("SELECT * FROM products")]
    return next((row for row in found if row["name"] in words or str(row["product_id"]) == words), None)


def read_purchases(user_id: int) -> list[dict[str, Any]]:
    found = records.rows(
        "SELECT purchase_id, name AS product, purchases.cents, bought_on, refund_id IS NOT NULL AS refunded "
        "FROM purchases JOIN products USING (product_id) LEFT JOIN refunds USING (purchase_id) "
        "WHERE user_id = ? ORDER BY purchase_id",
        user_id,
    )
    return [{**_format_price(row), "refunded": bool(row["refunded"])} for row in found]


def _format_price(row: dict[str, Any]) -> dict[str, Any]:
    """A row as people are told of it: the price in words instead of cents."""
    return {**{name: value for name, value in row.items() if name != "cents"}, "price": format_euros(row["cents"])}


def format_euros(cents: int) -> str:
    return f"{cents / 100:.2f} euros"
