from smolagents import ChatMessage, CodeAgent, ToolCallingAgent, tool
from turns import get_time, get_weather, take_all


def take(turn, streamed, task):
    if turn in ("tools", "code"):
        kind = ToolCallingAgent if turn == "tools" else CodeAgent
        agent = kind(tools=[tool(get_weather), tool(get_time)], model=model, stream_outputs=streamed)
        return agent.run(task), None
    messages = [ChatMessage(role="user", content=[{"type": "text", "text": task}])]
    if streamed:
        return "".join(delta.content or "" for delta in model.generate_stream(messages)), None
    return model.generate(messages).content, None


take_all(take)
