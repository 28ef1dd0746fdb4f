"""Published weights give the same texts and embeddings as in transformers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import transformers

from models.checkpoint.loader import load_model
from server.text.chats.chat import read_templates
from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.tokenizer_files import read_tokenizer_files
from tests.e2e.conftest import serving
from tests.published.conftest import found

PROMPTS = ("The capital of France is", "def fibonacci(n):", "Water boils at a temperature of")
NEW_TOKENS = 24


def single(pattern: str) -> Path:
    files = found(pattern)
    if len(files) != 1:
        pytest.skip(f"no {pattern}")
    return files[0]


def test_smollm2_writes_the_text_of_transformers(tmp_path: Path) -> None:
    """We serve a GGUF file in float32; transformers computes with its dequantised weights."""
    file = single("smollm2/**/*.gguf")
    options = {"gguf_file": file.name, "dtype": torch.float32}
    theirs = transformers.AutoModelForCausalLM.from_pretrained(file.parent, **options).eval()
    ours = load_tokenizer(file)
    with serving(tmp_path / "log", f"smollm2={file}", "--dtype", "float32") as server:
        for prompt in PROMPTS:
            body = {"prompt": prompt, "max_new_tokens": NEW_TOKENS, "temperature": 0, "return_token_ids": True}
            answer = server.post("/generate", json=body)
            assert answer.status_code == 200, answer.text
            (choice,) = answer.json()["choices"]
            ids = ours.encode([prompt], add_special_tokens=True, offsets=False)[0].ids
            sequence = torch.tensor([[*ids, *choice["token_ids"]]])
            with torch.no_grad():
                logits = theirs(sequence).logits[0, len(ids) - 1 : -1]
            # Kernels round activations to int8, which changes logits. A chosen token must be nearly the likeliest.
            chosen = logits[torch.arange(len(logits)), choice["token_ids"]]
            assert (logits.max(1).values - chosen).max() < 0.5, prompt
            assert (logits.argmax(1) == torch.tensor(choice["token_ids"])).float().mean() > 0.9


def test_smollm2_ends_its_turns_and_has_its_template() -> None:
    file = single("smollm2/**/*.gguf")
    tokenizer = load_tokenizer(file)
    templates = read_templates(file, read_tokenizer_files(file))
    assert "<|im_start|>" in templates.choose()
    loaded = load_model(file, torch.float32, torch.device("cpu"))
    assert {tokenizer.id_to_token(token) for token in loaded.generation.end_token_ids} >= {"<|im_end|>"}


def test_minilm_gives_the_vectors_of_transformers(tmp_path: Path) -> None:
    directory = single("minilm/**/modules.json").parent
    texts = ["A cat sits on the mat.", "Un chat.", "The quick brown fox jumps over the lazy dog. " * 20]
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    model = transformers.AutoModel.from_pretrained(directory, dtype=torch.float32).eval()
    longest = json.loads((directory / "sentence_bert_config.json").read_text())["max_seq_length"]
    batch = tokenizer(texts, padding=True, truncation=True, max_length=longest, return_tensors="pt")
    with torch.no_grad():
        hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None]
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1))
    with serving(tmp_path / "log", f"minilm={directory}", "--dtype", "float32") as server:
        vectors = server.post("/embed", json={"inputs": texts, "truncate": True}).json()
    assert (torch.tensor(vectors) - expected).abs().max() < 1e-5
