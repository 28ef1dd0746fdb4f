"""POST /embed_sparse: the weight of each vocabulary entry in a text (SPLADE). Needs a masked language model."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model with a masked language model head

body = {"model": model, "inputs": ["The old sailor slept.", "The sailor was old."]}
first, second = httpx.post(f"{url}/embed_sparse", json=body, timeout=60).raise_for_status().json()
weights = {term["index"]: term["value"] for term in second}
print(f"weights above zero: {len(first)} and {len(second)}")
print(f"dot product: {sum(term['value'] * weights.get(term['index'], 0.0) for term in first):.3f}")
