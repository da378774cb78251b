"""A function that the model may call. Its name, docstring and hints are what the model knows of it."""

from typing import Literal

from swarmkeep import Agent

KILOMETRES_PER_MILE = 1.609344


def convert_distance(distance: float, unit: Literal["miles", "kilometres"]) -> str:
    """Convert a distance: how far miles are in kilometres, or kilometres in miles.

    Args:
        distance: The number to convert.
        unit: The unit that the distance is in.
    """
    if unit == "miles":
        return f"{distance:g} miles are {distance * KILOMETRES_PER_MILE:.2f} kilometres."
    return f"{distance:g} kilometres are {distance / KILOMETRES_PER_MILE:.2f} miles."


distance_agent = Agent(
    name="Distance Agent",
    instructions="You convert distances. Calculate with your function only, never in your head.",
    functions=[convert_distance],
)
