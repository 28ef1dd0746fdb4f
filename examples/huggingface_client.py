"""POST /models/{model}: the tasks of `huggingface_hub.InferenceClient`, which takes the URL of a model as its model."""

import os

from huggingface_hub import InferenceClient

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL", "story")
key = os.environ.get("TRIPTYCH_API_KEY", "not-needed")  # the server's API key, if it has one

client = InferenceClient(model=f"{url}/models/{model}", token=key)
print("text:", client.text_generation("Once upon a time", max_new_tokens=20))
print("stream:", end="")
for text in client.text_generation("Once upon a time", max_new_tokens=20, stream=True):
    print("", text, end="", flush=True)
print()
