"""Run the turns of a driver, offer tools to the model, and report the answers.

A driver is a block of docs/agents.md, followed by a file of this folder. The environment variable TURNS is a JSON list
with the name, the mode and the task of each turn.
"""

import json
import os
import traceback
from collections.abc import Callable

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


def take_all(take: Callable[[str, bool, str], tuple[str, str | None]]) -> None:
    """Run all turns and report each.

    take: function that runs one turn, given its name, whether to stream, and the task. It returns the final text, and
        the reasoning if the program shows it.
    """
    for turn, mode, task in json.loads(os.environ["TURNS"]):
        CALLS.clear()
        try:
            text, reasoning = take(turn, mode == "streamed", task)
            result = {"text": text, "reasoning": reasoning, "calls": CALLS}
        except Exception:
            result = {"error": traceback.format_exc()}
        print("\nREPORT " + json.dumps({"turn": turn, "mode": mode, **result}), flush=True)
