from langchain.agents import create_agent
from turns import STREAMED, TASK, TURN, get_time, get_weather, report

agent = create_agent(model, tools=[get_weather, get_time] if TURN == "tools" else [])
state = {"messages": [{"role": "user", "content": TASK}]}
if STREAMED:
    text = ""
    for chunk, _ in agent.stream(state, stream_mode="messages"):
        text = text + chunk.text if "AI" in chunk.type else ""
else:
    text = agent.invoke(state)["messages"][-1].text
report(str(text))
