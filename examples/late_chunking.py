"""POST /embed with `chunks`: one vector per sentence of a long text, computed with the whole text as its context."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that makes vectors

text = "The old fox slept. It woke at night. Then the king came home."
body = {"model": model, "inputs": text, "chunks": "sentences", "pooling": "mean"}
for chunk in httpx.post(f"{url}/embed", json=body, timeout=60).raise_for_status().json():
    numbers = ", ".join(f"{number:.3f}" for number in chunk["embedding"][:3])
    print(f"{text[chunk['start'] : chunk['end']]}: [{numbers}, ...]")
