"""POST /tokenize and POST /detokenize: text to token ids and back."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model

body = {"model": model, "inputs": "The old fox slept."}
(tokens,) = httpx.post(f"{url}/tokenize", json=body, timeout=60).raise_for_status().json()
for token in tokens:
    print(f"{token['id']:6d}  {token['text']}")

body = {"model": model, "ids": [token["id"] for token in tokens], "skip_special_tokens": True}
(text,) = httpx.post(f"{url}/detokenize", json=body, timeout=60).raise_for_status().json()
print("text:", text)
