"""One agent with two functions: it tells a made-up weather, and writes e-mails that go nowhere."""

from hashlib import sha256
from typing import Any

from swarmkeep import Agent, Result, ToolCallId, tool
from swarmkeep_agents.references import make_reference

SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy")


def get_weather(location: str, time: str = "now") -> dict[str, Any]:
    """Get the weather forecast for a place: how warm or cold it is, and whether it is sunny, rainy, windy or snowy.

    Args:
        location: The city or place, such as Oslo.
        time: The time or day that the forecast is for, such as "tonight" or "tomorrow"; by default now.
    """
    # The same place and time always have the same weather, in every process.
    digest = sha256(f"{location}\n{time}".casefold().encode("utf-8", "replace")).digest()
    sky = SKIES[digest[0] % len(SKIES)]
    celsius = digest[1] % 8 - 7 if sky == "snowy" else digest[1] % 28 + 1
    return {"location": location, "time": time, "sky": sky, "celsius": celsius, "source": "made up for this example"}


@tool(idempotent=True)
def send_email(
    recipient: str, subject: str, body: str, context_variables: dict[str, Any], tool_call_id: ToolCallId
) -> Result:
    """Send an e-mail message to somebody.

    Args:
        recipient: The e-mail address that it goes to.
        subject: What the e-mail is about, in a few words.
        body: The text of the e-mail.
    """
    email_id = make_reference("MAIL", tool_call_id)
    email = {"recipient": recipient, "subject": subject, "body": body}
    return Result(
        value=f"E-mail {email_id} to {recipient} is in the outbox, which is as far as it goes in this example.",
        context_variables={"outbox": {**context_variables.get("outbox", {}), email_id: email}},
    )


weather_agent = Agent(
    name="Weather Agent",
    instructions=(
        "You tell people the weather and write e-mails for them. "
        "Look the weather up each time, and say that it is made up. "
        "Before you send an e-mail, make sure that you know the address and what it should say."
    ),
    functions=[get_weather, send_email],
)
