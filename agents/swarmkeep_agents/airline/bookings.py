"""The airline's bookings, credits, refunds and baggage searches: rows in `airline.db`. All of them are made up."""

import sqlite3
from datetime import date
from typing import Any

from swarmkeep_agents.records import Records

CHANGE_FEE = {"flexible": 0, "standard": 35}
"""In euros, by fare. What is not here cannot be changed."""
DAYS_FROM_BOOKED = 60

TABLES = (
    """CREATE TABLE bookings (
        booking_id TEXT PRIMARY KEY, passenger TEXT NOT NULL, flight TEXT NOT NULL, origin TEXT NOT NULL,
        destination TEXT NOT NULL, departs_on TEXT NOT NULL, fare TEXT NOT NULL, paid INTEGER NOT NULL,
        status TEXT NOT NULL DEFAULT 'booked')""",
    """CREATE TABLE payments (
        payment_id INTEGER PRIMARY KEY, booking_id TEXT NOT NULL REFERENCES bookings, kind TEXT NOT NULL,
        amount INTEGER NOT NULL)""",
    """CREATE TABLE searches (
        search_id INTEGER PRIMARY KEY, booking_id TEXT NOT NULL REFERENCES bookings, bag TEXT NOT NULL,
        status TEXT NOT NULL DEFAULT 'looking for it')""",
    "CREATE TABLE cases (case_id INTEGER PRIMARY KEY, reason TEXT NOT NULL)",
)
BOOKINGS = (
    ("KW4821", "Robin Vale", "KW 118", "Lisbon", "Oslo", "2031-05-14", "flexible", 210),
    ("KW4822", "Robin Vale", "KW 119", "Oslo", "Lisbon", "2031-05-28", "standard", 140),
    ("KW4823", "Sam Okoye", "KW 340", "Bergen", "Rome", "2031-06-02", "saver", 60),
)


def _fill(connection: sqlite3.Connection) -> None:
    columns = "booking_id, passenger, flight, origin, destination, departs_on, fare, paid"
    connection.executemany(f"INSERT INTO bookings ({columns}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)", BOOKINGS)


records = Records("airline.db", TABLES, _fill)


def find_booking(booking_id: str, connection: sqlite3.Connection | None = None) -> dict[str, Any] | None:
    """A booking by its number, however it is written."""
    query = "SELECT * FROM bookings WHERE booking_id = ?"
    if connection is None:
        return records.row(query, normalize_number(booking_id))
    row = connection.execute(query, (normalize_number(booking_id),)).fetchone()
    return None if row is None else dict(row)


def normalize_number(booking_id: str) -> str:
    return booking_id.upper().replace("-", "").replace(" ", "")


def explain_no_booking(booking_id: str) -> str:
    return f"There is no booking {booking_id}. Nothing was done."


def explain_no_change(booking: dict[str, Any], new_date: date) -> str | None:
    """Why a booking cannot be moved to a date; None if it can."""
    if booking["status"] != "booked":
        return f"Booking {booking['booking_id']} is {booking['status']}, so it cannot be changed."
    if booking["fare"] not in CHANGE_FEE:
        return f"A {booking['fare']} fare cannot be changed. It can be cancelled for a credit."
    days = abs((new_date - date.fromisoformat(booking["departs_on"])).days)
    if days > DAYS_FROM_BOOKED:
        return f"A flight moves by {DAYS_FROM_BOOKED} days at most; {new_date} is {days} days from the booked date."
    return None


def cancel_and_pay(connection: sqlite3.Connection, booking: dict[str, Any], kind: str, amount: int) -> str:
    """Cancel a booking for a refund or a credit; the number of the payment."""
    connection.execute("UPDATE bookings SET status = 'cancelled' WHERE booking_id = ?", (booking["booking_id"],))
    cursor = connection.execute(
        "INSERT INTO payments (booking_id, kind, amount) VALUES (?, ?, ?)", (booking["booking_id"], kind, amount)
    )
    return f"{kind.upper()}-{cursor.lastrowid}"
