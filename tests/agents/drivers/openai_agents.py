import asyncio

from agents import function_tool
from turns import STREAMED, TASK, TURN, get_time, get_weather, report

if TURN == "tools":
    agent.tools = [function_tool(get_weather), function_tool(get_time)]


async def stream() -> str:
    result = Runner.run_streamed(agent, TASK)
    events = [event async for event in result.stream_events()]
    assert any(event.type == "raw_response_event" for event in events)
    return result.final_output


report(asyncio.run(stream()) if STREAMED else Runner.run_sync(agent, TASK).final_output)
