"""POST /v1/messages and POST /v1/messages/count_tokens with the anthropic package: a message, then a streamed one."""

import os

import anthropic

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL", "story")
client = anthropic.Anthropic(base_url=url, api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"))
messages = [{"role": "user", "content": "Tell me a story about a fox."}]

print("prompt tokens:", client.messages.count_tokens(model=model, messages=messages).input_tokens)
message = client.messages.create(model=model, max_tokens=40, messages=messages)
print("message:", message.content[0].text)
print("stop reason:", message.stop_reason)

print("stream: ", end="")
with client.messages.stream(model=model, max_tokens=40, messages=messages) as stream:
    for text in stream.text_stream:
        print(text, end="", flush=True)
print()
