"""One `triptych serve` answers from a quantised checkpoint of every format.

The packages `compressed-tensors` and `gguf` write their own formats, the functions of `tests.weights` the others. The
log-probabilities of every answer are compared with those of the same weights in float32.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import LlamaConfig

from models.backends import choice
from tests.e2e.conftest import RunningServer, serving
from tests.parity.checkpoints import write_model
from tests.parity.quantized_checkpoints import FORMATS, KERNEL_FORMATS, quantize, save
from tests.weights.gguf_files import Quantize, of_type, q4_k, q6_k, write_gguf
from tests.weights.gguf_tokenizers import add_bpe_tokenizer
from weights.demo.train import stories
from weights.demo.train.training import HOME

PROMPT = "The old man and his daughter lived in a small house by the river. One day the old man said to her"
SIZES = {
    "vocab_size": 1280,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "pad_token_id": 2,
    "tie_word_embeddings": True,
}
SMALL = LlamaConfig(**SIZES, hidden_size=64, intermediate_size=96, num_hidden_layers=2)
WIDE = LlamaConfig(**SIZES, hidden_size=256, intermediate_size=256, num_hidden_layers=1)
"""The model for GGUF. Its rows are multiples of 256 inputs, the block size of the K formats."""


def q4_k_m(name: str, matrix: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    return q6_k(matrix) if name.startswith("token_embd") or ".attn_v." in name or ".ffn_down" in name else q4_k(matrix)


GGUF: dict[str, Quantize] = {
    "gguf-q8_0": of_type(gguf.GGMLQuantizationType.Q8_0),
    "gguf-q4_0": of_type(gguf.GGMLQuantizationType.Q4_0),
    "gguf-q4_k_m": q4_k_m,
}


def add_tokenizer(writer: gguf.GGUFWriter) -> None:
    """Describe the tokenizer of the story model as the converter does."""
    add_bpe_tokenizer(writer, HOME / stories.NAME, bos_token_id=0, eos_token_id=1, add_bos=True)


def in_gguf(directory: Path, choose: Quantize, target: Path) -> tuple[Path, Path]:
    """Write a checkpoint as a quantised GGUF file, and as a directory with the dequantised weights.

    Returns both paths.
    """
    target.mkdir()
    chosen: dict[str, np.ndarray] = {}

    def recorded(name: str, matrix: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
        blocks, kind = choose(name, matrix)
        chosen[str(matrix.shape) + str(matrix.flat[0])] = gguf.quants.dequantize(blocks, kind)
        return blocks, kind

    file = write_gguf(target / "model.gguf", directory, recorded, add_tokenizer)
    plain = shutil.copytree(directory, target / "plain")
    tensors = load_file(directory / "model.safetensors")
    for name, tensor in tensors.items():
        if tensor.dim() == 2:
            matrix = tensor.numpy()
            tensors[name] = torch.from_numpy(chosen[str(matrix.shape) + str(matrix.flat[0])])
    save(plain, tensors)
    return file, plain


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """A server with the models NAME (quantised) and NAME-plain (the same weights in float32) of every format."""
    folder = tmp_path_factory.mktemp("served")
    small, wide = folder / "small", folder / "wide"
    for checkpoint, config in ((small, SMALL), (wide, WIDE)):
        write_model(checkpoint, config, "LlamaForCausalLM", std=0.05)
        for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
            shutil.copy(HOME / stories.NAME / name, checkpoint)
    pairs = {name: quantize(small, name, folder / name, lambda module: "proj" in module) for name in FORMATS}
    pairs |= {name: in_gguf(wide, choose, folder / name) for name, choose in GGUF.items()}
    sources = [f"{name}={pair[0]}" for name, pair in pairs.items()]
    sources += [f"{name}-plain={pair[1]}" for name, pair in pairs.items()]
    with serving(folder / "log", *sources, "--kv-cache-memory", "64M") as running:
        yield running


def ask(server: RunningServer, model: str) -> dict[str, Any]:
    body = {"model": model, "prompt": PROMPT, "max_new_tokens": 12, "ignore_eos": True, "logprobs": True}
    answer = server.post("/generate", json=body | {"prompt_logprobs": True})
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    return choice


def logprobs(choice: dict[str, Any]) -> list[float]:
    return [token["logprob"] for token in choice["prompt_logprobs"][1:]]


@pytest.mark.parametrize("name", [*FORMATS, *GGUF])
def test_answers_are_those_of_the_dequantised_weights(server: RunningServer, name: str) -> None:
    ours, plain = ask(server, name), ask(server, f"{name}-plain")
    if choice.kernels_are_built and name in (*KERNEL_FORMATS, *GGUF):
        # Kernels round activations to int8, so log-probabilities differ by a fraction of their standard deviation.
        found, expected = torch.tensor(logprobs(ours)), torch.tensor(logprobs(plain))
        assert (found - expected).square().mean().sqrt() < 0.05 * expected.std()
    else:
        assert ours["text"] == plain["text"]
        assert logprobs(ours) == pytest.approx(logprobs(plain), rel=1e-3, abs=1e-3)


def test_answers_do_not_depend_on_other_requests(server: RunningServer) -> None:
    names = [*FORMATS, *GGUF]
    alone = {name: ask(server, name) for name in names}
    with ThreadPoolExecutor(len(names) * 3) as pool:
        together = list(pool.map(lambda name: (name, ask(server, name)), names * 3))
    assert all(choice == alone[name] for name, choice in together)
