"""POST /translate: one text with alternatives from beam search, then several texts in one request."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that offers the language pair

body = {"model": model, "inputs": "I am a student", "source_lang": "en", "target_lang": "fr", "num_alternatives": 2}
answer = httpx.post(f"{url}/translate", json=body, timeout=60).raise_for_status().json()
(translation,) = answer["translations"]
print("translation:", translation["text"])
for alternative in translation["alternatives"]:
    print("alternative:", alternative["text"])

body = {"model": model, "inputs": ["The garden is small.", "We like the red house."]}
body |= {"source_lang": "en", "target_lang": "fr"}
answer = httpx.post(f"{url}/translate", json=body, timeout=60).raise_for_status().json()
for translation in answer["translations"]:
    print("translation:", translation["text"])
