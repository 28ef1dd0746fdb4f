from pathlib import Path

from pydantic import SecretStr
from pydantic_ai import FunctionToolset
from pydantic_ai.messages import TextPart, ThinkingPart
from turns import CALLS, get_time, get_weather, take_all


def keep(path: Path, labels: set[str], token: SecretStr) -> str:
    """Keep a file under labels."""
    CALLS.append(("keep", {"path": str(path), "labels": sorted(labels), "token": token.get_secret_value()}))
    return "kept"


TOOLS = FunctionToolset([get_weather, get_time, keep])


async def read(_, events):
    """Read a streamed answer to its end.

    `run_stream` is not used: if the model writes text before a tool call, it would take the text as the final answer.
    """
    async for _event in events:
        pass


def take(turn, streamed, task):
    toolsets = [TOOLS] if turn in ("tools", "types") else []
    result = agent.run_sync(task, toolsets=toolsets, event_stream_handler=read if streamed else None)
    parts = result.all_messages()[-1].parts
    thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
    return "".join(part.content for part in parts if isinstance(part, TextPart)), "".join(thoughts) or None


take_all(take)
