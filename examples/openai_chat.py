"""POST /v1/chat/completions with the `openai` package: a whole answer, and a streamed one."""

import os

from openai import OpenAI

# A server without API keys accepts any key, but the package requires one.
client = OpenAI(
    base_url=os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
)
model = os.environ.get("TRIPTYCH_MODEL", "story")

messages = [{"role": "user", "content": "Once upon a time"}]
# Temperature 0 gives the same text each time. Without it the answer is drawn at random, as OpenAI's is.
request = {"model": model, "messages": messages, "max_tokens": 40, "temperature": 0}
answer = client.chat.completions.create(**request)
print("answer:", answer.choices[0].message.content)
print("usage:", answer.usage.total_tokens, "tokens")

print("streamed: ", end="")
for chunk in client.chat.completions.create(**request, stream=True):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
