import asyncio
from pathlib import Path

from pydantic import SecretStr
from pydantic_ai.messages import ThinkingPart
from turns import CALLS, STREAMED, TASK, TURN, get_time, get_weather, report


def keep(path: Path, labels: set[str], token: SecretStr) -> str:
    """Keep a file under labels."""
    CALLS.append(("keep", {"path": str(path), "labels": sorted(labels), "token": token.get_secret_value()}))
    return "kept"


if TURN in ("tools", "types"):
    for function in (get_weather, get_time, keep):
        agent.tool_plain(function)


async def stream():
    async with agent.run_stream(TASK) as result:
        await result.get_output()
        return result.all_messages()


messages = asyncio.run(stream()) if STREAMED else agent.run_sync(TASK).all_messages()
parts = messages[-1].parts
thoughts = [part.content for part in parts if isinstance(part, ThinkingPart)]
report("".join(part.content for part in parts if part.part_kind == "text"), "".join(thoughts) if thoughts else None)
