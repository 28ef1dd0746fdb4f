"""POST /embed_all: one vector for each token, as late interaction models (ColBERT) use them."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that makes vectors

body = {"model": model, "inputs": "The cat sleeps.", "dimensions": 4}
(tokens,) = httpx.post(f"{url}/embed_all", json=body, timeout=60).raise_for_status().json()
for number, vector in enumerate(tokens):
    print(f"token {number}:", [round(value, 3) for value in vector])
