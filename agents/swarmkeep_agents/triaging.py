"""Triage over specialists, made by a helper: triage can hand over to each of them, and each of them back to it."""

import re
from collections.abc import Callable, Mapping

from swarmkeep import Agent


def connect_triage(triage: Agent, specialists: Mapping[str, Agent]) -> Agent:
    """Give `triage` a handoff to each specialist, and each specialist one back.

    The key says when to hand over, as in "the customer wants a refund". Gives `triage` itself.
    """
    back = make_handoff(triage, "Hand back to triage when the topic is a different one, handled by another agent.")
    for when, agent in specialists.items():
        triage.functions.append(make_handoff(agent, f"Hand over when {when}."))
        agent.functions.append(back)
    return triage


def make_handoff(agent: Agent, description: str) -> Callable[[], Agent]:
    """A function that hands over to an agent; its name is made of the agent's."""

    def transfer() -> Agent:
        return agent

    words = re.findall(r"\w+", agent.name.lower().removesuffix(" agent"))
    transfer.__name__ = "_".join(("transfer_to", *words))
    transfer.__doc__ = description
    return transfer
