"""The smallest agents there are: one module each for talking, calling a function, handing over, remembering, asking,
drawing and refusing."""

from swarmkeep_agents.basic.bare_minimum import agent
from swarmkeep_agents.basic.consulting import travel_agent
from swarmkeep_agents.basic.context_variables import notebook_agent
from swarmkeep_agents.basic.files import chart_agent
from swarmkeep_agents.basic.function_calling import distance_agent
from swarmkeep_agents.basic.guardrails import discreet_agent
from swarmkeep_agents.basic.handoff import english_agent, spanish_agent

__all__ = [
    "agent",
    "chart_agent",
    "discreet_agent",
    "distance_agent",
    "english_agent",
    "notebook_agent",
    "spanish_agent",
    "travel_agent",
]
