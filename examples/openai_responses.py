"""POST /v1/responses with the `openai` package: a conversation that the server stores, and one that it does not."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
)
options = {"model": os.environ.get("TRIPTYCH_MODEL", "story"), "max_output_tokens": 40, "temperature": 0}

stored = client.responses.create(input="Once upon a time", **options)
print("answer:", stored.output_text)
print("streamed: ", end="")
for event in client.responses.create(input="One day", previous_response_id=stored.id, stream=True, **options):
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
print()

conversation = [{"role": "user", "content": "Once upon a time"}, *stored.output, {"role": "user", "content": "One day"}]
answer = client.responses.create(input=conversation, store=False, **options)
print("without a store:", answer.output_text)
client.responses.delete(stored.id)
