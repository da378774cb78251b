"""Context variables: instructions that read them, and functions that read and change them."""

from typing import Any

from swarmkeep import Agent, Result


def instructions(context_variables: dict[str, Any]) -> str:
    name = context_variables.get("user_name")
    greeting = f"Call the user {name}." if name else "Ask for the user's name and remember it."
    return f"You keep a small notebook for the user. {greeting}"


def remember_name(name: str) -> Result:
    """Remember the name of the user, when they say who they are or what they are called.

    Args:
        name: What the user is called.
    """
    return Result(value=f"Pleased to meet you, {name}.", context_variables={"user_name": name})


def write_note(note: str, context_variables: dict[str, Any]) -> Result:
    """Write a note into the notebook, to remember it for later.

    Args:
        note: What to write down.
    """
    notes = [*context_variables.get("notes", []), note]
    return Result(value=f"Written down as note {len(notes)}.", context_variables={"notes": notes})


def read_notebook(context_variables: dict[str, Any]) -> dict[str, Any]:
    """Read the notebook aloud: all notes so far, and whose they are."""
    return {"user_name": context_variables.get("user_name"), "notes": context_variables.get("notes", [])}


notebook_agent = Agent(
    name="Notebook Agent",
    instructions=instructions,
    functions=[remember_name, write_note, read_notebook],
)
