"""POST /generate with "stream": true: print the text as the model produces it (server-sent events)."""

import json
import os

import httpx

url = os.environ.get("TRIPTYCH_URL", "http://127.0.0.1:8000")
model = os.environ.get("TRIPTYCH_MODEL")  # None: the first loaded model that can generate

body = {"model": model, "prompt": "Once upon a time", "max_new_tokens": 40, "stream": True}
event = ""
with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as response:
    response.raise_for_status()
    for line in response.iter_lines():
        name, _, value = line.partition(": ")
        if name == "event":
            event = value
        elif name == "data" and event == "token":
            print(json.loads(value)["text"], end="", flush=True)
        elif name == "data" and event == "done":
            print("\nfinished:", json.loads(value)["choices"][0]["finish_reason"])
        elif name == "data" and event == "error":
            raise SystemExit(json.loads(value)["error"]["message"])
