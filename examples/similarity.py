"""POST /similarity: the cosine between one sentence and several others."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that makes vectors

sentences = ["The cat was chased by the dog.", "The king bought a red boat."]
body = {"model": model, "inputs": {"source_sentence": "The dog chased the cat.", "sentences": sentences}}
cosines = httpx.post(f"{url}/similarity", json=body, timeout=60).raise_for_status().json()
for cosine, sentence in zip(cosines, sentences, strict=True):
    print(f"{cosine:.3f}: {sentence}")
