"""Requests choose LoRA adapters, saved by peft, by name, also in the same batch.

Results equal those of merged weights.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from tests import warm_processes
from tests.documented_commands import shell_blocks
from tests.e2e.conftest import REPOSITORY, RunningServer, serving
from tests.e2e.test_oracle import post
from tests.parity.adapters import save_adapter

DEMO = REPOSITORY / "weights" / "demo"
PROMPTS = ["Once upon a time", "The old fox", "One night the wind"]
STORIES = {"story": None, "grim": {"r": 8}, "merry": {"target_modules": ["q_proj", "v_proj", "up_proj"], "r": 2}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def oracles(home: Path) -> dict:
    """Write random adapters for two demo models. Returns reference models by name: both models, and merged copies."""
    base = AutoModelForCausalLM.from_pretrained(DEMO / "story")
    generated = {"story": base}
    for seed, name in enumerate(("grim", "merry")):
        generated[name] = save_adapter(base, home / name, seed, **STORIES[name])
    mood = AutoModelForSequenceClassification.from_pretrained(DEMO / "sentiment")
    generated |= {"sentiment": mood, "gloom": save_adapter(mood, home / "gloom", 3, target_modules=["query", "dense"])}
    return generated


@pytest.fixture(scope="module")
def server(oracles: dict, home: Path) -> Iterator[RunningServer]:
    file = home / "triptych.toml"
    file.write_text('dtype = "float32"\n')
    adapters = [
        "--adapter", f"grim={home / 'grim'}@story,merry={home / 'merry'}@story",
        "--adapter", f"gloom={home / 'gloom'}@sentiment",
    ]  # fmt: skip
    with serving(home / "log", "--device", "cpu", "--config", str(file), *adapters) as server:
        yield server


@torch.inference_mode()
@pytest.mark.parametrize("num_beams", [1, 3])
def test_concurrent_stories_of_a_model_and_its_adapters(server: RunningServer, oracles: dict, num_beams: int) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "story")
    jobs = [(name, prompt) for name in STORIES for prompt in PROMPTS]
    body = {"max_new_tokens": 40, "num_beams": num_beams}
    with ThreadPoolExecutor(len(jobs)) as pool:
        answers = list(
            pool.map(lambda job: post(server, "/generate", {"model": job[0], "prompt": job[1]} | body), jobs)
        )
    texts = {}
    for (name, prompt), answer in zip(jobs, answers, strict=True):
        inputs = tokenizer(prompt, return_tensors="pt")
        generated = oracles[name].generate(**inputs, max_new_tokens=40, num_beams=num_beams, do_sample=False)[0]
        texts[name, prompt] = tokenizer.decode(generated, skip_special_tokens=True)
        assert answer["model"] == name
        assert prompt + answer["choices"][0]["text"] == texts[name, prompt]
    assert len(set(texts.values())) == len(jobs), "the adapters change nothing"


@torch.inference_mode()
def test_classes(server: RunningServer, oracles: dict) -> None:
    tokenizer = AutoTokenizer.from_pretrained(DEMO / "sentiment")
    texts = ["I loved this wonderful film", "a dull and empty story"]
    for name in ("sentiment", "gloom"):
        found = post(server, "/classify", {"model": name, "inputs": texts, "top_k": None})
        logits = oracles[name](**tokenizer(texts, return_tensors="pt", padding=True)).logits
        for labels, scores in zip(found, logits.softmax(-1), strict=True):
            by_label = {scored["label"]: scored["score"] for scored in labels}
            for index, label in oracles["sentiment"].config.id2label.items():
                assert by_label[label] == pytest.approx(float(scores[index]), abs=1e-4)


def test_info_and_metrics_treat_adapters_as_models(server: RunningServer) -> None:
    models = {model["name"]: model for model in server.get("/info").json()["models"]}
    assert {name: model["adapter_of"] for name, model in models.items() if model["adapter_of"]} == {
        "grim": "story",
        "merry": "story",
        "gloom": "sentiment",
    }
    assert models["grim"]["tasks"] == models["story"]["tasks"]
    assert 0 < models["merry"]["parameters"] < models["grim"]["parameters"] < models["story"]["parameters"]
    before = server.metric("triptych_generated_tokens_total", model="merry")
    post(server, "/generate", {"model": "merry", "prompt": "The old fox", "max_new_tokens": 5, "ignore_eos": True})
    assert server.metric("triptych_generated_tokens_total", model="merry") == before + 5


def test_an_adapter_follows_a_grammar(server: RunningServer) -> None:
    body = {
        "model": "grim",
        "prompt": "The old fox",
        "response_format": {"type": "choice", "choices": [" ran", " sat"]},
    }
    assert post(server, "/generate", body)["choices"][0]["text"] in (" ran", " sat")


def test_requests_without_a_model_never_use_an_adapter(server: RunningServer) -> None:
    answer = post(server, "/generate", {"prompt": "The old fox", "max_new_tokens": 2})
    assert answer["model"] == "story"
    unknown = server.post("/generate", json={"model": "sad", "prompt": "The old fox"})
    assert unknown.status_code == 404 and unknown.json()["error"]["code"] == "model_not_found"
    other = server.post("/embed", json={"model": "grim", "inputs": "The old fox"})
    assert other.status_code == 422 and "/generate" in other.json()["error"]["message"]


@pytest.mark.parametrize(
    ("setting", "status", "words"),
    [
        ("grim={home}/grim@tale", 2, "no model is named 'tale'"),
        ("story={home}/grim@story", 2, "'story' is that of a model"),
        ("grim={home}/none@story", 1, "there is no directory"),
        ("grim={home}/grim@translator-en-fr", 1, "model 'translator-en-fr': adapter 'grim': the base model has no"),
        ("grim=@story", 2, "write NAME=PATH_OR_HUB_ID@MODEL"),
    ],
)
@pytest.mark.usefixtures("oracles")
def test_the_error_for_an_invalid_adapter_is_one_line(home: Path, setting: str, status: int, words: str) -> None:
    done = warm_processes.run("serve", "--port", "0", "--adapter", setting.format(home=home), "--log-level", "error")
    assert done.returncode == status
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("triptych:")]
    assert words in line
    assert "Traceback" not in done.stdout + done.stderr


def test_the_command_of_the_page(server: RunningServer) -> None:
    """The command of docs/adapters.md works, with the name of another adapter."""
    (block,) = [block for block in shell_blocks() if block.reason == "tests/e2e/test_adapters.py"]
    (command,) = block.commands
    own = command.replace("http://127.0.0.1:8000", server.url).replace('"tone"', '"grim"')
    own = own.replace("curl ", "curl --fail-with-body ", 1)
    done = subprocess.run(["bash", "-c", own], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and '"model":"grim"' in done.stdout, done.stdout
