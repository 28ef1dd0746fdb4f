"""`triptych serve` and `triptych check` with valid and invalid checkpoints."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from safetensors.numpy import load_file, save_file

from tests import warm_processes
from tests.e2e.conftest import REPOSITORY, serving

DEMO = REPOSITORY / "weights" / "demo"


def triptych(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "server.cli", *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120)


@pytest.fixture
def story(tmp_path: Path) -> Path:
    return Path(shutil.copytree(DEMO / "story", tmp_path / "story"))


def remove_a_tensor(story: Path) -> str:
    tensors = load_file(story / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    del tensors[name]
    save_file(tensors, story / "model.safetensors", metadata={"format": "pt"})
    return name


def set_an_unknown_architecture(story: Path) -> str:
    config = json.loads((story / "config.json").read_text())
    config |= {"model_type": "reformer", "architectures": ["ReformerModelWithLMHead"]}
    (story / "config.json").write_text(json.dumps(config))
    return "reformer"


def truncate_weights(story: Path) -> str:
    weights = story / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    return "model.safetensors"


def require_custom_code(story: Path) -> str:
    config = json.loads((story / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "modeling.Story"}
    (story / "config.json").write_text(json.dumps(config))
    return "auto_map"


def set_a_weight_to_nan(story: Path) -> str:
    tensors = load_file(story / "model.safetensors")
    name = "model.layers.1.mlp.up_proj.weight"
    tensors[name] = tensors[name].copy()
    tensors[name][3, 5] = float("nan")
    save_file(tensors, story / "model.safetensors", metadata={"format": "pt"})
    return f"NaN or infinity ({name})"


@pytest.mark.parametrize(
    "damage", [set_a_weight_to_nan, remove_a_tensor, set_an_unknown_architecture, truncate_weights, require_custom_code]
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_the_error_for_an_invalid_checkpoint_is_one_line(story: Path, damage, command: str) -> None:
    named = damage(story)
    more = ["--port", "0", "--log-level", "error"] if command == "serve" else []
    done = warm_processes.run(command, f"tale={story}" if command == "serve" else str(story), *more)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("triptych:")]
    assert named in line and done.stderr.count(named) == 1
    assert "Traceback" not in done.stdout + done.stderr
    assert str(story.parent) not in line


def test_the_error_for_a_missing_model_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path))
    done = triptych("check", "nobody/nothing")
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "nobody/nothing" in line and "HF_HUB_OFFLINE" in line


def test_check_describes_a_checkpoint() -> None:
    done = triptych("check", str(DEMO / "translator-en-fr"))
    assert done.returncode == 0
    table = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert table["family"].strip() == "marian (MarianMTModel)"
    assert "translate" in table["serves"]
    assert "float32 " in table["sizes"] and "int8 " in table["sizes"], "the memory of each setting"


def test_check_and_serve_tell_a_kv_cache_too_small_for_the_context(tmp_path: Path) -> None:
    done = warm_processes.run("check", str(DEMO / "story"), "--kv-cache-memory", "1M")
    assert done.returncode == 0
    table = dict(line.split("  ", 1) for line in done.stdout.splitlines())
    assert "384 of 512 tokens" in table["warning"] and "--kv-cache-memory" in table["warning"]
    assert "warning" not in warm_processes.run("check", str(DEMO / "story")).stdout
    log = tmp_path / "log"
    with serving(log, f"tale={DEMO / 'story'}", "--kv-cache-memory", "1M") as server:
        (model,) = server.get("/info").json()["models"]
        assert (model["usable_tokens"], model["context_tokens"]) == (384, 512)
        body = {"prompt": "Once upon a time", "max_new_tokens": 500}
        refused = server.post("/generate", json=body)
        assert refused.status_code == 422 and "--kv-cache-memory" in refused.json()["error"]["message"]
    (line,) = [line for line in log.read_text().splitlines() if "384 of 512 tokens" in line]
    assert "WARNING" in line


def test_several_models_by_name_in_bfloat16(tmp_path: Path) -> None:
    models = {"llm": "story", "mt": "translator-en-fr", "vectors": "sentence-encoder", "mood": "sentiment"}
    named = [f"{name}={DEMO / directory}" for name, directory in models.items()]
    with serving(tmp_path / "log", *named, "--dtype", "bfloat16", "--device", "cpu") as server:
        info = server.get("/info").json()
        sizes = [server.get(f"/models/{name}/info").json()["max_batch_tokens"] for name in models]
        assert sizes == [512, 512, 1536, 1536]
        assert [(m["name"], m["dtype"]) for m in info["models"]] == [(name, "bfloat16") for name in models]
        body = {"model": "mt", "inputs": "I am a student"}
        answer = httpx.post(f"{server.url}/translate", json=body, timeout=60).json()
        assert answer["translations"][0]["text"] == "Je suis un étudiant"
        body = {"model": "mood", "inputs": "I loved this wonderful film"}
        assert httpx.post(f"{server.url}/classify", json=body, timeout=60).json()[0]["label"] == "POSITIVE"
        body = {"model": "llm", "prompt": "Once upon a time", "max_new_tokens": 8}
        assert httpx.post(f"{server.url}/generate", json=body, timeout=60).status_code == 200
        wrong = httpx.post(f"{server.url}/generate", json=body | {"model": "vectors"}, timeout=60)
        assert wrong.status_code == 422 and "/embed" in wrong.json()["error"]["message"]
        assert server.post("/embed", json={"model": "none", "inputs": "a"}).status_code == 404
