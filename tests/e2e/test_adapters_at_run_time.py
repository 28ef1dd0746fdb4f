"""An administrator adds adapters to a model on demand while the server runs, and removes them, with vLLM's routes."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.parity.adapters import save_adapter
from tests.waiting import HANG_SECONDS

DEMO = REPOSITORY / "weights" / "demo"
PROMPT = "The old fox"
KEYS = '[keys.operator]\nkey = "sk-operator"\nadmin = true\n\n[keys.user]\nkey = "sk-user"\n'
"""A key file with a key of an administrator and one of a user."""
OPERATOR, USER = ({"authorization": f"Bearer sk-{name}"} for name in ("operator", "user"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the adapters `grim` and `merry` of the demo model, and a broken one."""
    home = tmp_path_factory.mktemp("adapters")
    base = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    for seed, name in enumerate(("grim", "merry")):
        save_adapter(base, home / name, seed, r=8)
    (home / "broken").mkdir()
    (home / "broken" / "adapter_config.json").write_text("{")
    return home


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[RunningServer]:
    keys = home / "keys.toml"
    keys.write_text(KEYS)
    keys.chmod(0o600)
    flags = ("--memory", "600M", "--dtype", "float32", "--api-key-file", str(keys), "--allow-admin-load")
    with serving(home / "log", f"story={DEMO / 'story'}", f"mood={DEMO / 'sentiment'}", *flags) as server:
        yield server


def ask(server: RunningServer, path: str, body: dict, headers: dict = OPERATOR) -> httpx.Response:
    return httpx.post(server.url + path, json=body, headers=headers, timeout=HANG_SECONDS)


def add(server: RunningServer, home: Path, name: str, **more: str) -> httpx.Response:
    body = {"lora_name": name, "lora_path": str(home / name), "base_model_name": "story", **more}
    return ask(server, "/v1/load_lora_adapter", body)


def story(server: RunningServer, model: str, tokens: int = 24) -> httpx.Response:
    return ask(server, "/generate", {"model": model, "prompt": PROMPT, "max_new_tokens": tokens}, USER)


@torch.inference_mode()
def expected(home: Path, name: str) -> str:
    """The text of a model whose weights are merged with an adapter."""
    from peft import PeftModel

    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(DEMO / "story"), str(home / name))
    ids = model.generate(**tokenizer(PROMPT, return_tensors="pt"), max_new_tokens=24, do_sample=False)[0]
    return tokenizer.decode(ids, skip_special_tokens=True)[len(PROMPT) :]


def test_adapters_come_and_go_while_requests_run(server: RunningServer, home: Path) -> None:
    plain = story(server, "story").json()["choices"][0]["text"]
    assert story(server, "grim").status_code == 404
    with ThreadPoolExecutor(9) as pool:
        running = [pool.submit(story, server, "story") for _ in range(8)]
        adding = pool.submit(add, server, home, "grim")
        assert adding.result().text == "Success: LoRA adapter 'grim' added successfully."
        assert [done.result().json()["choices"][0]["text"] for done in running] == [plain] * 8
    assert add(server, home, "merry").status_code == 200
    texts = {name: story(server, name).json()["choices"][0]["text"] for name in ("story", "grim", "merry")}
    assert texts == {"story": plain, "grim": expected(home, "grim"), "merry": expected(home, "merry")}
    assert len(set(texts.values())) == 3, "the adapters change nothing"
    listed = {model["id"] for model in httpx.get(server.url + "/v1/models", headers=USER).json()["data"]}
    assert {"story", "grim", "merry", "mood"} <= listed
    # The model is loaded again with its adapters.
    assert ask(server, "/models/story/unload", {}).json()["state"] == "declared"
    assert story(server, "merry").json()["choices"][0]["text"] == texts["merry"]
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "grim"}).status_code == 200
    assert story(server, "grim").status_code == 404
    assert story(server, "merry").json()["choices"][0]["text"] == texts["merry"]
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "merry"}).status_code == 200
    assert story(server, "story").json()["choices"][0]["text"] == plain


def test_requests_that_change_nothing(server: RunningServer, home: Path) -> None:
    """Each is refused with its field and its reason, and the model answers as before."""
    plain = story(server, "story").text.partition('"seed"')[0].partition('"choices"')[2]
    body = {"lora_name": "grim", "lora_path": str(home / "grim"), "base_model_name": "story"}
    cases = [
        (body | {"lora_name": "mood"}, 422, "name of a model or adapter already"),
        (body | {"lora_name": "a b"}, 422, "must have letters"),
        (body | {"lora_path": str(home / "none")}, 422, "lora_path"),
        (body | {"base_model_name": "tale"}, 404, "no model is declared"),
        ({name: value for name, value in body.items() if name != "base_model_name"}, 422, "several models"),
        (body | {"lora_path": str(home / "broken")}, 503, "adapter"),
        (body | {"base_model_name": "mood"}, 503, "adapter"),
    ]
    for wrong, status, words in cases:
        answer = ask(server, "/v1/load_lora_adapter", wrong)
        assert answer.status_code == status and words in answer.text, (wrong, answer.text)
        assert str(home) not in answer.json()["error"]["message"]
    assert ask(server, "/v1/load_lora_adapter", body, USER).status_code == 403
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "none"}).status_code == 404
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "story"}).status_code == 404
    assert ask(server, "/v1/unload_lora_adapter", {"lora_name": "none"}, USER).status_code == 403
    assert story(server, "story").text.partition('"seed"')[0].partition('"choices"')[2] == plain
    assert ask(server, "/classify", {"model": "mood", "inputs": "I loved it"}, USER).status_code == 200
