"""POST /classify: the label of each text, with its probability."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded classifier

texts = ["I loved this wonderful film", "I hated this boring film"]
answer = httpx.post(f"{url}/classify", json={"model": model, "inputs": texts}, timeout=60).raise_for_status().json()
for text, labels in zip(texts, answer, strict=True):
    print(f"{labels[0]['label']} ({labels[0]['score']:.3f}): {text}")
