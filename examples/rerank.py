"""POST /rerank: order texts by how well they answer a query. Needs a cross-encoder (a classifier with one label)."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded cross-encoder

texts = ["London is a city.", "Ada Lovelace wrote the first program.", "The cat sleeps."]
body = {"model": model, "query": "Who wrote the first program?", "texts": texts}
for ranked in httpx.post(f"{url}/rerank", json=body, timeout=60).raise_for_status().json():
    print(f"{ranked['score']:.3f}: {texts[ranked['index']]}")
