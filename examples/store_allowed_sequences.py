"""PUT /allowed_sequences/{name}: store a list of answers once, and name it in requests to `/generate`."""

import json
import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that generates text

answers = [" a boy", " a girl", " a little dog", " a little girl", " the moon"]
with httpx.Client(base_url=url, timeout=60) as client:
    # One JSON value a line: a text, or a list of token ids. A set may have a million lines.
    lines = "".join(json.dumps(answer) + "\n" for answer in answers)
    query = {"model": model} if model else {}
    headers = {"Content-Type": "application/x-ndjson"}
    stored = client.put("/allowed_sequences/people", content=lines, params=query, headers=headers).raise_for_status()
    print(f"stored {stored.json()['sequences']} sequences in {stored.json()['memory_bytes']} bytes")
    body = {"model": model, "prompt": "Once upon a time there was", "allowed_sequences": "people"}
    body |= {"num_beams": 5, "num_return_sequences": 5}
    for choice in client.post("/generate", json=body).raise_for_status().json()["choices"]:
        print(f"{choice['score']:.3f}{choice['text']}")
    client.delete("/allowed_sequences/people").raise_for_status()
