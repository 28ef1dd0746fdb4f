"""POST /zero_shot_classify: choose among labels that the model was not trained on. Needs an NLI classifier."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded classifier with an entailment label

body = {"model": model, "inputs": "The band played until midnight.", "candidate_labels": ["music", "sport", "law"]}
answer = httpx.post(f"{url}/zero_shot_classify", json=body, timeout=60).raise_for_status().json()
for label, score in zip(answer["labels"], answer["scores"], strict=True):
    print(f"{score:.3f}: {label}")
