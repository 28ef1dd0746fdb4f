"""POST /embed: one vector for each sentence, and the cosine of two of them."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that makes vectors

body = {"model": model, "inputs": ["The cat sleeps.", "The dog runs."]}
cat, dog = httpx.post(f"{url}/embed", json=body, timeout=60).raise_for_status().json()
print("dimensions:", len(cat))
# The vectors have length 1 ("normalize": true is the default), so their dot product is the cosine.
print("cosine:    ", round(sum(a * b for a, b in zip(cat, dog, strict=True)), 4))
