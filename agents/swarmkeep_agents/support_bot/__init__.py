"""The help desk of Larkpost, a made-up newsletter service: a front desk, and an agent that knows the help centre.

Search, tickets and e-mails are real rows in `support_bot.db`, see `help_centre.py`. Callers may give `email`.
"""

from sqlite3 import Connection
from typing import Any

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep_agents.support_bot import help_centre
from swarmkeep_agents.support_bot.help_centre import records

FRONT_DESK_INSTRUCTIONS = (
    "You answer at the front desk of Larkpost, a service for newsletters. Find out what the customer needs. "
    "Questions about the product go to the help centre. You only chat yourself if nothing is asked."
)


def help_centre_instructions(context_variables: dict[str, Any]) -> str:
    return (
        "You answer questions about Larkpost, a service for newsletters. Search the help centre for each question, and "
        "read the whole article if the passage is not enough. Answer in your own words from what you found there, name "
        "the article's title, and never answer from memory. If the articles do not help, offer to open a ticket. "
        "Send an e-mail only if the customer asks for one. "
        f"The customer's e-mail address is {context_variables.get('email', 'not known yet')}."
    )


def transfer_to_help_centre() -> Agent:
    """Hand over when the customer has a question or a problem: password, account, billing, invoices, importing readers,
    letters in the spam folder, scheduling, privacy; or wants a ticket opened or checked, or an e-mail sent."""
    return help_centre_agent


def transfer_to_front_desk() -> Agent:
    """Hand back to the front desk when the topic is a different one, handled by another agent."""
    return front_desk


def search_help_centre(question: str) -> dict[str, Any]:
    """Search the help centre's articles for an answer to a question, such as one on passwords, billing, invoices,
    cancelling, importing readers, letters in the spam folder, scheduling or privacy.

    Args:
        question: The question, in the customer's words.
    """
    found = help_centre.search_articles(question)
    return {"found": found} if found else {"found": [], "all_articles": help_centre.list_article_ids()}


def read_article(article_id: str) -> dict[str, Any] | str:
    """Read an article of the help centre as a whole.

    Args:
        article_id: Which one, as the search names it, such as "billing".
    """
    found = help_centre.find_article(article_id)
    return found or f"There is no article {article_id!r}. There are {', '.join(help_centre.list_article_ids())}."


@tool(idempotent=True)
def open_ticket(summary: str, email: str, tool_call_id: ToolCallId) -> Result:
    """Open a ticket for a person to look at, when the articles do not help.

    Args:
        summary: What is wrong, in a sentence or two.
        email: The address at which the customer is answered.
    """

    def act(db: Connection) -> str:
        number = db.execute("INSERT INTO tickets (summary, email) VALUES (?, ?)", (summary, email)).lastrowid
        return f"Ticket TICKET-{number} is open; the answer goes to {email}."

    answer = records.perform_once(tool_call_id, ["ticket", summary, email], act)
    return Result(value=answer, context_variables={"email": email, "ticket_id": answer.split()[1]})


def check_ticket(ticket_id: str) -> dict[str, Any] | str:
    """Tell the status of a ticket that was opened before.

    Args:
        ticket_id: Which one, such as TICKET-3.
    """
    return help_centre.find_ticket(ticket_id) or f"There is no ticket {ticket_id}."


@tool(idempotent=True)
def send_email(recipient: str, subject: str, body: str, tool_call_id: ToolCallId) -> Result:
    """Send an e-mail to the customer, who has asked for one.

    Args:
        recipient: The address that it goes to.
        subject: What it is about, in a few words.
        body: The text.
    """

    def act(db: Connection) -> str:
        values = (recipient, subject, body)
        number = db.execute("INSERT INTO outbox (recipient, subject, body) VALUES (?, ?, ?)", values).lastrowid
        return f"E-mail MAIL-{number} to {recipient} waits in the outbox."

    answer = records.perform_once(tool_call_id, ["email", recipient, subject, body], act)
    return Result(value=answer, context_variables={"email": recipient})


front_desk = Agent(name="Front Desk Agent", instructions=FRONT_DESK_INSTRUCTIONS, functions=[transfer_to_help_centre])

help_centre_agent = Agent(
    name="Help Centre Agent",
    instructions=help_centre_instructions,
    functions=[search_help_centre, read_article, open_ticket, check_ticket, send_email, transfer_to_front_desk],
)
