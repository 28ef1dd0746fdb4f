"""POST /token_classify: named entities, with their place in the text. Needs a token classification model."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded token classifier

text = "Ada Lovelace lived in London."
body = {"model": model, "inputs": text, "aggregation_strategy": "simple"}
for entity in httpx.post(f"{url}/token_classify", json=body, timeout=60).raise_for_status().json():
    print(f"{entity['entity_group']} ({entity['score']:.3f}): {text[entity['start'] : entity['end']]}")
