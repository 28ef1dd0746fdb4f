import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from turns import get_time, get_weather, take_all

LOOP = asyncio.new_event_loop()  # one for all turns: the client of a turn is used in the next


async def use_tools(streamed, task):
    agent = FunctionAgent(tools=[get_weather, get_time], llm=llm, streaming=streamed)
    running = agent.run(task)
    deltas = [event.delta async for event in running.stream_events() if isinstance(event, AgentStream)]
    assert bool(deltas) == streamed
    return str(await running)


def take(turn, streamed, task):
    if turn == "tools":
        return LOOP.run_until_complete(use_tools(streamed, task)), None
    if streamed:
        return "".join(chunk.delta or "" for chunk in llm.stream_chat([ChatMessage(task)])), None
    return llm.chat([ChatMessage(task)]).message.content, None


take_all(take)
