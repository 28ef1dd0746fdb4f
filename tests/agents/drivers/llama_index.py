import asyncio

from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.core.llms import ChatMessage
from turns import STREAMED, TASK, TURN, get_time, get_weather, report


async def use_tools() -> str:
    agent = FunctionAgent(tools=[get_weather, get_time], llm=llm, streaming=STREAMED)
    running = agent.run(TASK)
    deltas = [event.delta async for event in running.stream_events() if isinstance(event, AgentStream)]
    assert bool(deltas) == STREAMED
    return str(await running)


if TURN == "tools":
    text = asyncio.run(use_tools())
elif STREAMED:
    text = "".join(chunk.delta or "" for chunk in llm.stream_chat([ChatMessage(TASK)]))
else:
    text = llm.chat([ChatMessage(TASK)]).message.content
report(text)
