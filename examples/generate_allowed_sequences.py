"""POST /generate with `allowed_sequences`: beam search ranks a fixed list of answers (generative retrieval)."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that generates text

answers = [" a boy", " a girl", " a little dog", " a little girl", " the moon"]
body = {"model": model, "prompt": "Once upon a time there was", "allowed_sequences": answers}
body |= {"num_beams": 5, "num_return_sequences": 5}
answer = httpx.post(f"{url}/generate", json=body, timeout=60).raise_for_status().json()
for choice in answer["choices"]:
    print(f"{choice['score']:.3f}{choice['text']}")
