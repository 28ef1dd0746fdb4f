"""The turn that a driver takes, the tools that it offers, and the report of what came back.

A driver is a block of docs/agents.md, followed by a file of this folder. The test sets the environment variables.
"""

import json
import os

TASK = os.environ["TASK"]
TURN = os.environ["TURN"]
STREAMED = os.environ["MODE"] == "streamed"
CALLS: list[tuple[str, dict[str, object]]] = []


def get_weather(city: str) -> str:
    """The weather of a city, now.

    Args:
        city: Name of the city.
    """
    CALLS.append(("get_weather", {"city": city}))
    return f"Sunny in {city}."


def get_time(zone: str) -> str:
    """The time of a zone, now.

    Args:
        zone: Name of the zone, as in the IANA database.
    """
    CALLS.append(("get_time", {"zone": zone}))
    return "12:00"


def report(text: str, reasoning: str | None = None) -> None:
    """Print the final text, and the reasoning if the program shows it."""
    print("REPORT " + json.dumps({"text": text, "reasoning": reasoning, "calls": CALLS}))
