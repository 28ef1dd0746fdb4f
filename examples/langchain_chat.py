"""Chat with the `langchain-openai` package: a whole answer, and a streamed one."""

import os

from langchain_openai import ChatOpenAI

chat = ChatOpenAI(
    model=os.environ.get("TRIPTYCH_MODEL", "story"),
    base_url=os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
    max_tokens=40,
    temperature=0,
)
print("answer:", chat.invoke("Once upon a time").content)

print("streamed: ", end="")
for chunk in chat.stream("Once upon a time"):
    print(chunk.content, end="", flush=True)
print()
