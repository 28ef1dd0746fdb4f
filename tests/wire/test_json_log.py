"""`--log-format json` at level debug: every line is a JSON object with time and level, without any prompt or key."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import httpx

from server.api.dialects import registry
from tests.waiting import HANG_SECONDS, eventually
from tests.wire.conftest import Process

PROMPT, KEY = "CaNaRyPrompt", "CaNaRyKey"


def test_the_whole_log_of_a_server_in_json(start: Callable[..., Process], tmp_path: Path) -> None:
    keys = tmp_path / "keys.toml"
    keys.write_text(f'[keys.team-a]\nkey = "{KEY}"\n')
    server = start("--log-format", "json", "--log-level", "debug", "--api-key-file", str(keys))
    server.wait_ready()
    send_canaries(server.url)
    server.worker().kill()
    eventually(lambda: '"worker 2 is ready' in server.output)
    keys.write_text(f'[keys.team-a]\nkey = "{KEY}"\nmax_tokens = "{KEY}"\n')
    eventually(lambda: "max_tokens must be a whole number" in server.output)
    metrics = server.get("/metrics", headers={"x-api-key": KEY}).text
    server.stop()
    values = [json.loads(line) for line in server.lines]
    assert len(values) > 100 and all({"time", "level", "logger", "message"} <= value.keys() for value in values)
    messages = [value["message"] for value in values]
    assert any(message.startswith("Triptych is ready on http://") for message in messages)
    assert any("was killed by SIGKILL" in message for message in messages) and messages[-1] == "Triptych has stopped"
    access = [value for value in values if value["logger"] == "triptych.access"]
    assert all(re.fullmatch(r"[0-9a-f]{32}|canary-[0-9]+", value["request_id"]) for value in access)
    (known,) = [value for value in access if value["request_id"] == "canary-1"]
    assert (known["path"], known["model"], known["status"], known["client"], known["key"]) == (
        "/generate",
        "decoder",
        200,
        "127.0.0.1",
        "team-a",
    )
    assert known["finish"] == "stop"
    assert {value["status"] for value in access} >= {200, 401, 404, 422}
    assert "CaNaRy" not in server.output and "CaNaRy" not in metrics


def send_canaries(url: str) -> None:
    """Send a known prompt and key in every place: valid and invalid bodies of each route, paths, queries, headers."""
    with httpx.Client(base_url=url, headers={"x-api-key": KEY}, timeout=HANG_SECONDS) as http:
        body = {"prompt": PROMPT, "model": "decoder"}
        http.post("/generate", json=body, headers={"x-request-id": "canary-1"})
        http.post("/generate", json=body | {"stream": True, "stop": PROMPT})
        http.post("/generate", content=f'{{"prompt": "{PROMPT}'.encode())
        for route in registry.ROUTES:
            _, example = route.path, json.dumps(route.example[0])
            path = route.path.replace("{model}", "decoder")
            http.post(f"{path}?q={PROMPT}", content=re.sub(r'"(inputs|prompt|text|q)": "', rf"\g<0>{PROMPT} ", example))
            http.post(path, json={field: [PROMPT] for field in route.body.model_fields} | {PROMPT: 1})
        http.get(f"/{PROMPT}?{PROMPT}={KEY}")
        http.post("/translate", json={"q": PROMPT, "source": "en", "target": "de", "api_key": KEY})
        for headers in ({"x-api-key": KEY + "x"}, {"authorization": f"Basic {KEY}"}, {"cookie": KEY}):
            httpx.get(f"{url}/info", headers=headers, timeout=HANG_SECONDS)
        http.post(
            "/v1/audio/transcriptions", files={"file": (PROMPT, b"RIFF" + PROMPT.encode())}, data={"model": PROMPT}
        )
