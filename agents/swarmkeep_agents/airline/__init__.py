"""Kittiwake Air, a made-up airline: triage, flight modification with its two specialists, and lost baggage.

Callers may give the context variables `customer` (`name`, `booking_id`) and `flight`; looking a booking up fills both.
What the functions do is written into `airline.db`, see `bookings.py`. The routines are in `policies.py`.
"""

import json
from datetime import date
from sqlite3 import Connection
from typing import Any

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep_agents.airline import bookings, policies
from swarmkeep_agents.airline.bookings import CHANGE_FEE, explain_no_booking, explain_no_change, records

# Instructions: the manner that all share, the routine of one, and what is known of customer and flight.


def _describe_customer(context_variables: dict[str, Any]) -> str:
    customer = context_variables.get("customer") or "not known yet"
    flight = context_variables.get("flight") or "not known yet"
    return f"The customer: {json.dumps(customer)}. Their flight: {json.dumps(flight)}."


def triage_instructions(context_variables: dict[str, Any]) -> str:
    return (
        f"{policies.MANNER}\nYou are the first voice that customers hear. Find out what they need, and hand over: to "
        "flight modification for cancelling or changing a flight, to lost baggage for a bag that did not arrive. Ask "
        f"for no details that the others will ask for. {_describe_customer(context_variables)}"
    )


def modification_instructions(context_variables: dict[str, Any]) -> str:
    return (
        f"{policies.MANNER}\nYou find out whether a customer wants to change a flight or to cancel it, and hand over "
        f"accordingly. If it is not clear, ask. {_describe_customer(context_variables)}"
    )


def change_instructions(context_variables: dict[str, Any]) -> str:
    return f"{policies.MANNER}{policies.CHANGE}{_describe_customer(context_variables)}"


def cancel_instructions(context_variables: dict[str, Any]) -> str:
    return f"{policies.MANNER}{policies.CANCEL}{_describe_customer(context_variables)}"


def lost_baggage_instructions(context_variables: dict[str, Any]) -> str:
    return f"{policies.MANNER}{policies.LOST_BAGGAGE}{_describe_customer(context_variables)}"


# Handoffs.


def transfer_to_flight_modification() -> Agent:
    """Hand over when the customer wants to change, move, rebook or cancel a flight."""
    return flight_modification


def transfer_to_flight_change() -> Agent:
    """Hand over when the customer wants another date for a flight: change, move, reschedule or rebook it."""
    return flight_change


def transfer_to_flight_cancel() -> Agent:
    """Hand over when the customer wants to cancel a flight, or wants money back or a credit for it."""
    return flight_cancel


def transfer_to_lost_baggage() -> Agent:
    """Hand over when a bag, suitcase or other baggage did not arrive, is lost or missing."""
    return lost_baggage


def transfer_to_airline_triage() -> Agent:
    """Hand back to triage when the topic is a different one, handled by another agent."""
    return triage


# What all of them can do.


def look_up_booking(booking_id: str) -> str | Result:
    """Look a booking up: passenger, flight, date, fare and status.

    Args:
        booking_id: The number of the booking, such as KW4821.
    """
    booking = bookings.find_booking(booking_id)
    if booking is None:
        return explain_no_booking(booking_id)
    customer = {"name": booking["passenger"], "booking_id": booking["booking_id"]}
    return Result(value=json.dumps(booking), context_variables={"customer": customer, "flight": booking})


@tool(idempotent=True)
def escalate_to_human(reason: str, tool_call_id: ToolCallId) -> str:
    """Escalate to a person, when the customer asks for a human or a manager, or nobody here can settle it.

    Args:
        reason: What the customer needs, in a sentence.
    """

    def act(db: Connection) -> str:
        number = db.execute("INSERT INTO cases (reason) VALUES (?)", (reason,)).lastrowid
        return f"Case CASE-{number} is with a human now, who will call back."

    return records.perform_once(tool_call_id, ["escalate", reason], act)


def close_case() -> Result:
    """Close the case: everything is settled, and the customer has said that this is all."""
    return Result(value="The case is closed.", context_variables={"case": "closed"})


# Changing.


def check_change(booking_id: str, new_date: date) -> str:
    """Check whether a flight can be moved to another date, and what the fee is; changes nothing.

    Args:
        booking_id: The number of the booking.
        new_date: The date wanted, as YYYY-MM-DD.
    """
    booking = bookings.find_booking(booking_id)
    if booking is None:
        return explain_no_booking(booking_id)
    return (
        explain_no_change(booking, new_date)
        or f"It can be moved to {new_date} for {CHANGE_FEE[booking['fare']]} euros."
    )


@tool(idempotent=True)
def change_flight(booking_id: str, new_date: date, tool_call_id: ToolCallId) -> str | Result:
    """Change a flight, move it to another date, once the customer has agreed to the fee.

    Args:
        booking_id: The number of the booking.
        new_date: The new date, as YYYY-MM-DD.
    """

    def act(db: Connection) -> str:
        booking = bookings.find_booking(booking_id, db)
        if booking is None:
            return explain_no_booking(booking_id)
        if problem := explain_no_change(booking, new_date):
            return problem
        where = (new_date.isoformat(), booking["booking_id"])
        db.execute("UPDATE bookings SET departs_on = ? WHERE booking_id = ?", where)
        return f"Booking {booking['booking_id']} is moved to {new_date}. Fee: {CHANGE_FEE[booking['fare']]} euros."

    return _add_flight(booking_id, records.perform_once(tool_call_id, ["change", booking_id, new_date], act))


# Cancelling. Money goes out once a colleague has said yes; a credit needs nobody.


@tool(requires_approval=True, idempotent=True)
def refund_flight(booking_id: str, tool_call_id: ToolCallId) -> str | Result:
    """Cancel a flight and refund what was paid: the customer wants the money back. For flexible fares only.

    Args:
        booking_id: The number of the booking.
    """

    def act(db: Connection) -> str:
        booking = bookings.find_booking(booking_id, db)
        if booking is None or booking["status"] == "cancelled":
            return explain_no_booking(booking_id) if booking is None else f"Booking {booking_id} is cancelled already."
        if booking["fare"] != "flexible":
            return f"A {booking['fare']} fare is not refunded. It can be cancelled for a credit."
        number = bookings.cancel_and_pay(db, booking, "refund", booking["paid"])
        return f"Booking {booking['booking_id']} is cancelled. Refund {number}: {booking['paid']} euros."

    return _add_flight(booking_id, records.perform_once(tool_call_id, ["refund", booking_id], act))


@tool(idempotent=True)
def give_flight_credit(booking_id: str, tool_call_id: ToolCallId) -> str | Result:
    """Cancel a flight for a credit towards a later one, worth a tenth more than what was paid; for every fare.

    Args:
        booking_id: The number of the booking.
    """

    def act(db: Connection) -> str:
        booking = bookings.find_booking(booking_id, db)
        if booking is None or booking["status"] == "cancelled":
            return explain_no_booking(booking_id) if booking is None else f"Booking {booking_id} is cancelled already."
        amount = booking["paid"] * 11 // 10
        number = bookings.cancel_and_pay(db, booking, "credit", amount)
        return f"Booking {booking['booking_id']} is cancelled. Credit {number}: {amount} euros."

    return _add_flight(booking_id, records.perform_once(tool_call_id, ["credit", booking_id], act))


# Lost baggage.


@tool(idempotent=True)
def start_baggage_search(booking_id: str, bag: str, tool_call_id: ToolCallId) -> str | Result:
    """Start a search for a bag that did not arrive.

    Args:
        booking_id: The number of the booking that the bag travelled on.
        bag: What it looks like: kind, size, colour.
    """

    def act(db: Connection) -> str:
        booking = bookings.find_booking(booking_id, db)
        if booking is None:
            return explain_no_booking(booking_id)
        values = (booking["booking_id"], bag)
        number = db.execute("INSERT INTO searches (booking_id, bag) VALUES (?, ?)", values).lastrowid
        return f"Search BAG-{number} is under way. It is ended when the bag is found, or after 21 days."

    return records.perform_once(tool_call_id, ["search", booking_id, bag], act)


def check_baggage_search(booking_id: str) -> dict[str, Any]:
    """Tell how the searches for the bags of a booking stand: their status and progress.

    Args:
        booking_id: The number of the booking.
    """
    query = "SELECT 'BAG-' || search_id AS search_id, bag, status FROM searches WHERE booking_id = ?"
    return {"searches": records.rows(query, bookings.normalize_number(booking_id))}


def _add_flight(booking_id: str, answer: str) -> str | Result:
    """The answer, and the flight in the context variables as it is now."""
    booking = bookings.find_booking(booking_id)
    return answer if booking is None else Result(value=answer, context_variables={"flight": booking})


SHARED_FUNCTIONS = (escalate_to_human, close_case, transfer_to_airline_triage)

# The team. The first agent is the one that a conversation starts with.

triage = Agent(
    name="Airline Triage Agent",
    instructions=triage_instructions,
    functions=[transfer_to_flight_modification, transfer_to_lost_baggage, escalate_to_human],
)

flight_modification = Agent(
    name="Flight Modification Agent",
    instructions=modification_instructions,
    functions=[transfer_to_flight_change, transfer_to_flight_cancel, transfer_to_airline_triage],
)

flight_change = Agent(
    name="Flight Change Agent",
    instructions=change_instructions,
    functions=[look_up_booking, check_change, change_flight, transfer_to_flight_cancel, *SHARED_FUNCTIONS],
)

flight_cancel = Agent(
    name="Flight Cancel Agent",
    instructions=cancel_instructions,
    functions=[look_up_booking, refund_flight, give_flight_credit, transfer_to_flight_change, *SHARED_FUNCTIONS],
)

lost_baggage = Agent(
    name="Lost Baggage Agent",
    instructions=lost_baggage_instructions,
    functions=[look_up_booking, start_baggage_search, check_baggage_search, *SHARED_FUNCTIONS],
)
