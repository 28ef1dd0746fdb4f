"""Chat with the `litellm` package: a whole answer, and a streamed one."""

import os

import litellm

model = "openai/" + os.environ.get("TRIPTYCH_MODEL", "story")
server = {
    "api_base": os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    "api_key": os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
    "temperature": 0,
}
messages = [{"role": "user", "content": "Once upon a time"}]
print("answer:", litellm.completion(model, messages, max_tokens=40, **server).choices[0].message.content)

print("streamed: ", end="")
for chunk in litellm.completion(model, messages, max_tokens=40, stream=True, **server):
    print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
