"""A handoff: a function that returns another agent makes it the active one."""

from swarmkeep import Agent


def transfer_to_spanish_agent() -> Agent:
    """Hand over when the user speaks Spanish or asks for someone who does."""
    return spanish_agent


def transfer_to_english_agent() -> Agent:
    """Hand back when the user speaks English or asks for someone who does."""
    return english_agent


english_agent = Agent(
    name="English Agent",
    instructions="You speak English and no other language.",
    functions=[transfer_to_spanish_agent],
)

spanish_agent = Agent(
    name="Spanish Agent",
    instructions="Hablas español y ningún otro idioma.",
    functions=[transfer_to_english_agent],
)
