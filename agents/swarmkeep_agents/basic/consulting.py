"""An agent that asks another one: the conversation stays here, and the answer comes back as a function's would."""

from swarmkeep import Agent
from swarmkeep_agents.basic.function_calling import distance_agent

travel_agent = Agent(
    name="Travel Agent",
    instructions="You plan trips. Ask for every distance in the other unit, and pass on what you are told.",
    functions=[
        distance_agent.as_tool(
            "ask_distance_agent", "Ask how far a distance in miles is in kilometres, or the other way round."
        )
    ],
)
