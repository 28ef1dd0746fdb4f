import asyncio

from agents import function_tool
from turns import get_time, get_weather, take_all

TOOLS = [function_tool(get_weather), function_tool(get_time)]


async def stream(task):
    result = Runner.run_streamed(agent, task)
    events = [event async for event in result.stream_events()]
    assert any(event.type == "raw_response_event" for event in events)
    return result.final_output


def take(turn, streamed, task):
    agent.tools = TOOLS if turn == "tools" else []
    return asyncio.run(stream(task)) if streamed else Runner.run_sync(agent, task).final_output, None


take_all(take)
