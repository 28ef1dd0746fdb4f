import asyncio

from agents import function_tool
from turns import get_time, get_weather, take_all

TOOLS = [function_tool(get_weather), function_tool(get_time)]
# One event loop for all turns: the client keeps its connections, and `Runner.run_sync` uses the loop that is set.
LOOP = asyncio.new_event_loop()
asyncio.set_event_loop(LOOP)


async def stream(task):
    result = Runner.run_streamed(agent, task)
    events = [event async for event in result.stream_events()]
    assert any(event.type == "raw_response_event" for event in events)
    return result.final_output


def take(turn, streamed, task):
    agent.tools = TOOLS if turn == "tools" else []
    answer = LOOP.run_until_complete(stream(task)) if streamed else Runner.run_sync(agent, task).final_output
    return answer, None


take_all(take)
