import asyncio
import json
import os

import litellm
from turns import get_time, get_weather, take_all

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"The {name[4:]} now.",
            "parameters": {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        },
    }
    for name, argument in (("get_weather", "city"), ("get_time", "zone"))
]
FUNCTIONS = {"get_weather": get_weather, "get_time": get_time}
MODEL = os.environ["MODEL"]
LOOP = asyncio.new_event_loop()
SERVER = {"api_base": os.environ["API_BASE"], "api_key": "not-needed"}


def ask(messages, turn, streamed):
    """Send messages and return the message of the answer, also if it was streamed."""
    more = {"tools": TOOLS} if turn == "tools" else {}
    if MODEL.startswith("aiohttp_openai/"):
        answer = LOOP.run_until_complete(litellm.acompletion(MODEL, messages, **SERVER, **more))
    else:
        answer = litellm.completion(MODEL, messages, stream=streamed, **SERVER, **more)
    if streamed:
        answer = litellm.stream_chunk_builder(list(answer), messages=messages)
    return answer.choices[0].message


def take(turn, streamed, task):
    messages = [{"role": "user", "content": task}]
    while (message := ask(messages, turn, streamed)).tool_calls:
        messages.append(message.model_dump())
        for call in message.tool_calls:
            result = FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return message.content, getattr(message, "reasoning_content", None)


take_all(take)
