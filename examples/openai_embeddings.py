"""POST /v1/embeddings with the `openai` package: compare the meaning of sentences. GET /v1/models/{model}."""

import os

from openai import OpenAI

client = OpenAI(
    base_url=os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000") + "/v1",
    api_key=os.environ.get("TRIPTYCH_API_KEY", "not-needed"),
)
model = client.models.retrieve(os.environ.get("TRIPTYCH_MODEL", "sentence-encoder"))
print(f"{model.id} reads {model.max_model_len} tokens")

texts = ["The dog chased the cat.", "The cat was chased by the dog.", "The king gave the queen a book."]
first, *others = (item.embedding for item in client.embeddings.create(model=model.id, input=texts).data)
for text, vector in zip(texts[1:], others, strict=True):
    cosine = sum(a * b for a, b in zip(first, vector, strict=True))
    print(f"{cosine:.3f}: {text}")
