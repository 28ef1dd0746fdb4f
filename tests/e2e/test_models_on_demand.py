"""A server finds models in a directory and loads them on demand, with a broken model and a killed worker."""

from __future__ import annotations

import shutil
from pathlib import Path

import psutil

from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.waiting import eventually

DEMO = REPOSITORY / "weights" / "demo"
STORY = {"prompt": "Once upon a time", "max_new_tokens": 8, "do_sample": False}


def states(server: RunningServer) -> dict[str, str]:
    return {model["name"]: model["state"] for model in server.get("/info").json()["on_demand"]["models"]}


def test_models_come_when_asked_for_and_leave_for_others(tmp_path: Path, demo_server: RunningServer) -> None:
    models = tmp_path / "models"
    for name in ("story", "sentiment"):
        shutil.copytree(DEMO / name, models / name)
    shutil.copytree(DEMO / "story", models / "broken")
    (models / "broken" / "model.safetensors").write_bytes(b"\0" * 64)
    flags = ("--models-dir", str(models), "--memory", "150M", "--alias", "gpt-*=story", "--preload", "sentiment")
    with serving(tmp_path / "log", *flags) as server:
        assert states(server) == {"broken": "declared", "sentiment": "loaded", "story": "declared"}
        expected = demo_server.post("/generate", json=STORY).json()["choices"][0]["text"]
        for name in ("story", "gpt-4o"):
            answer = server.post("/generate", json=STORY | {"model": name}).json()
            assert answer["choices"][0]["text"] == expected and answer["model"] == "story"
        # A request without a model is answered by the first model that supports it, loaded or not.
        assert server.post("/classify", json={"inputs": "I loved it"}).status_code == 200
        refused = server.post("/generate", json=STORY | {"model": "broken", "stream": True})
        assert refused.status_code == 503 and 0 < int(refused.headers["retry-after"]) <= 5
        message = refused.json()["error"]["message"]
        assert "could not be loaded" in message and str(tmp_path) not in message
        assert states(server) == {"broken": "failed", "sentiment": "loaded", "story": "loaded"}
        # A model that appears later is found.
        shutil.copytree(DEMO / "translator-en-fr", models / ".incoming")
        (models / ".incoming").rename(models / "mt")
        body = {"inputs": ["I am a student"], "source_lang": "en", "target_lang": "fr"}
        assert server.post("/translate", json=body | {"model": "mt"}).status_code == 200
        assert server.get("/info").json()["on_demand"]["used_bytes"] <= 150 << 20
        # After the worker died, requests wait until a new worker has loaded the models.
        psutil.Process(server.worker().pid).kill()
        answer = server.post("/translate", json=body).json()
        assert answer.get("translations"), answer

        assert server.post("/models/mt/unload").json()["state"] == "declared"
        server.post("/api/generate", json={"model": "story", "prompt": "The", "stream": False, "keep_alive": 0})
        eventually(lambda: states(server)["story"] == "declared")
