"""POST /question_answer: the part of a context that answers a question. Needs a question answering model."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded question answering model

context = "Ada Lovelace lived in London. She wrote the first program."
body = {"model": model, "question": "Where did Ada Lovelace live?", "context": context, "top_k": 2}
for answer in httpx.post(f"{url}/question_answer", json=body, timeout=60).raise_for_status().json():
    print(f"{answer['score']:.3f}: {context[answer['start'] : answer['end']]}")
