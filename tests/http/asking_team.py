"""A desk that asks a clerk, who needs an approval to pay, an office that asks several at once, and a boss who pays."""

from swarmkeep import Agent, tool


@tool(requires_approval=True)
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"


clerk = Agent(name="Clerk", functions=[pay])
desk = Agent(name="Desk", functions=[clerk.as_tool("ask_clerk", "Ask the clerk.")])
office = Agent(
    name="Office", functions=[clerk.as_tool("ask_clerk", "Ask the clerk.", concurrent=True)], concurrent_tools=True
)
boss = Agent(name="Boss", functions=[pay, clerk.as_tool("ask_clerk", "Ask the clerk.")])
