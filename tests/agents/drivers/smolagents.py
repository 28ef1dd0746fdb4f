from smolagents import ChatMessage, CodeAgent, ToolCallingAgent, tool
from turns import STREAMED, TASK, TURN, get_time, get_weather, report

if TURN in ("tools", "code"):
    kind = ToolCallingAgent if TURN == "tools" else CodeAgent
    agent = kind(tools=[tool(get_weather), tool(get_time)], model=model, stream_outputs=STREAMED)
    text = agent.run(TASK)
elif STREAMED:
    messages = [ChatMessage(role="user", content=TASK)]
    text = "".join(delta.content or "" for delta in model.generate_stream(messages))
else:
    text = model.generate([ChatMessage(role="user", content=TASK)]).content
report(text)
