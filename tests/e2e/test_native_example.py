"""The example of docs/native-checkpoints.md works unchanged: tokens and scores equal those of the model."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx
import pytest
import torch

from tests import warm_processes
from tests.documented_commands import shell_blocks
from tests.e2e.conftest import REPOSITORY, serving

PAGE = REPOSITORY / "docs" / "native-checkpoints.md"
TEXTS = ["the garden is small", "the sea", "the old house is near the old sea", "is"]


def run_example(directory: Path, monkeypatch: pytest.MonkeyPatch) -> dict:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict = {}
    monkeypatch.chdir(directory)
    exec(compile(program, str(PAGE), "exec"), names)
    return names


@torch.inference_mode()
def greedy(model, source: list[int], count: int) -> tuple[list[int], list[float]]:
    """The first `count` tokens of greedy search without a KV cache, and their log-probabilities."""
    target, scores = [1], []
    while len(target) <= count and target[-1] != 2:
        logits = model(torch.tensor([source]), torch.tensor([target]))[0, -1]
        target.append(int(logits.argmax()))
        scores.append(float(logits.log_softmax(-1).max()))
    return target[1:], scores


def test_answers_equal_the_model_of_the_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    example = run_example(tmp_path, monkeypatch)
    model, tokenizer = example["model"], example["tokenizer"]
    with serving(tmp_path / "log", str(tmp_path / "translator"), "--dtype", "float32", "--device", "cpu") as server:
        body = {"prompt": TEXTS, "max_new_tokens": 20, "return_token_ids": True, "logprobs": True}
        answer = httpx.post(f"{server.url}/generate", json=body, timeout=60).json()
        translated = httpx.post(f"{server.url}/translate", json={"inputs": TEXTS[0], "max_new_tokens": 8}, timeout=60)
    for text, choice in zip(TEXTS, answer["choices"], strict=True):
        tokens, scores = greedy(model, tokenizer.encode(text).ids, 20)
        assert choice["token_ids"] == tokens
        assert [token["logprob"] for token in choice["logprobs"]] == pytest.approx(scores, abs=1e-4)
        assert choice["text"] == tokenizer.decode(tokens)
    (found,) = translated.json()["translations"]
    assert (found["source_lang"], found["target_lang"]) == ("en", "fr")
    assert found["text"].strip() == tokenizer.decode(greedy(model, tokenizer.encode(TEXTS[0]).ids, 8)[0]).strip()


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_example(tmp_path, monkeypatch)
    (block,) = [block for block in shell_blocks() if block.page == "docs/native-checkpoints.md"]
    check, serve, curl = [command.replace("translator", str(tmp_path / "translator")) for command in block.commands]
    checked = warm_processes.run(*check.split()[1:], "--device", "cpu")
    assert checked.returncode == 0 and "TriptychForConditionalGeneration" in checked.stdout, checked.stderr
    with serving(tmp_path / "log", *serve.removeprefix("triptych serve ").split()) as server:
        command = curl.replace("http://127.0.0.1:8000", server.url).replace("curl ", "curl --fail-with-body ", 1)
        done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and '"translations":' in done.stdout, done.stdout
