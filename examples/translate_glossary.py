"""POST /translate with `glossary`: sentences that contain a term are translated with its translation."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that offers the language pair

body = {"model": model, "inputs": "The house is small. We like the garden.", "source_lang": "en", "target_lang": "fr"}
for glossary in ({}, {"house": "villa", "castle": "palais"}):
    answer = httpx.post(f"{url}/translate", json=body | {"glossary": glossary}, timeout=60).raise_for_status().json()
    print("translation:", answer["translations"][0]["text"])
