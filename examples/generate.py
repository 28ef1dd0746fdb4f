"""POST /generate: continue a prompt, greedily and with sampling."""

import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that can generate

greedy = {"model": model, "prompt": "Once upon a time", "max_new_tokens": 40}
answer = httpx.post(f"{url}/generate", json=greedy, timeout=60).raise_for_status().json()
print("greedy: ", answer["choices"][0]["text"])

# The same seed gives the same text, alone or in a batch with other requests.
sampled = greedy | {"temperature": 0.8, "top_p": 0.95, "seed": 7, "n": 2}
answer = httpx.post(f"{url}/generate", json=sampled, timeout=60).raise_for_status().json()
for choice in answer["choices"]:
    print(f"sample {choice['index']}:", choice["text"])
print("usage:  ", answer["usage"])
