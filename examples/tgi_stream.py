"""POST /generate_stream: one event per token, as text-generation-inference sends them."""

import json
import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that can generate

parameters = {"max_new_tokens": 30, "temperature": 0.8, "seed": 7, "details": True}
body = {"model": model, "inputs": "Once upon a time", "parameters": parameters}
with httpx.stream("POST", f"{url}/generate_stream", json=body, timeout=60) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        if not line.startswith("data: "):
            continue
        event = json.loads(line.removeprefix("data: "))
        if "error" in event:
            raise SystemExit(event["error"])
        print(event["token"]["text"], end="", flush=True)
        if event["details"] is not None:
            print("\nfinished:", event["details"]["finish_reason"])
