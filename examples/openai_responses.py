"""POST /v1/responses with the `openai` package. The server stores nothing: the client sends the conversation."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
)
model = os.environ.get("TRIPTYCH_MODEL", "story")

conversation = [{"role": "user", "content": "Once upon a time"}]
answer = client.responses.create(model=model, input=conversation, max_output_tokens=40, store=False)
print("answer:", answer.output_text)

conversation += [*answer.output, {"role": "user", "content": "One day"}]
print("streamed: ", end="")
for event in client.responses.create(model=model, input=conversation, max_output_tokens=40, stream=True):
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
print()
