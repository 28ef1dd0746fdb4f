"""POST /api/chat and GET /api/tags with the ollama package: the loaded models, then a streamed answer."""

import os

import ollama

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL", "story")
key = os.environ.get("TRIPTYCH_API_KEY")
client = ollama.Client(host=url, headers={"Authorization": f"Bearer {key}"} if key else None)

print("models:", ", ".join(loaded.model for loaded in client.list().models))
messages = [{"role": "user", "content": "Tell me a story about a fox."}]
print("answer: ", end="")
for part in client.chat(model, messages, stream=True, options={"num_predict": 40, "temperature": 0}):
    print(part.message.content, end="", flush=True)
print(f"\n{part.eval_count} tokens in {part.eval_duration / 1e9:.2f} s")
