"""An agent that only talks: a name and instructions are all it takes."""

from swarmkeep import Agent

agent = Agent(name="Agent", instructions="Answer in one friendly sentence.")
