from langchain.agents import create_agent
from turns import get_time, get_weather, take_all


def take(turn, streamed, task):
    agent = create_agent(model, tools=[get_weather, get_time] if turn == "tools" else [])
    state = {"messages": [{"role": "user", "content": task}]}
    if not streamed:
        return str(agent.invoke(state)["messages"][-1].text), None
    text = ""
    for chunk, _ in agent.stream(state, stream_mode="messages"):
        text = text + str(chunk.text) if "AI" in chunk.type else ""
    return text, None


take_all(take)
