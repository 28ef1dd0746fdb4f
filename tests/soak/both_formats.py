"""Models for the comparison with llama.cpp, each as a Hugging Face checkpoint and as a GGUF file of the same weights.

The weights are random and in bfloat16. llama.cpp serves neither Marian nor Whisper, and it leaves the pooler of a BERT
out, so the models are decoders (LLaMA), embedders (BERT) and rerankers (RoBERTa, like the published BGE rerankers).
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch

from benchmarks import checkpoints, vocabulary
from tests.soak.checkpoints import BROKEN, Kind, Models, copy, shifted, write_broken
from tests.weights.gguf_files import of_type, write_gguf
from tests.weights.gguf_tokenizers import add_bpe_tokenizer

DECODER, EMBEDDER, RERANKER = "decoder", "embedder", "reranker"
COUNTS = {DECODER: 6, EMBEDDER: 6, RERANKER: 2}
CONTEXT_TOKENS = 2048
"""Context of the decoders in llama.cpp, that of `llama-50m`."""
CHECKPOINTS, GGUF_FILES = "checkpoints", "gguf"
"""Subdirectories with the models in the two formats."""


def _scores(answer: Any) -> list[float]:
    return [ranked["relevance_score"] for ranked in sorted(answer["results"], key=lambda ranked: ranked["index"])]


KINDS = {
    DECODER: Kind(
        "/v1/completions",
        {"prompt": "the old fox ran to the sea", "max_tokens": 4, "temperature": 0},
        lambda answer: answer["choices"][0]["text"],
    ),
    EMBEDDER: Kind(
        "/v1/embeddings", {"input": ["the dog chased the cat"]}, lambda answer: answer["data"][0]["embedding"]
    ),
    RERANKER: Kind("/v1/rerank", {"query": "the sea", "documents": ["a fox ran", "a deep blue sea"]}, _scores),
}
"""The request for each kind of model. Both servers have its route, with the same fields."""


def kind_name(name: str) -> str:
    """The kind of a model with this name, a key of `KINDS`."""
    return name.partition("-")[0]


def write(directory: Path, decoder: str = "llama-50m", encoder: str = "minilm-22m") -> Models:
    """Write `COUNTS` models in both formats, and a broken one. Returns the requests of the models by name.

    decoder, encoder: their shapes, keys of `benchmarks.checkpoints.SHAPES`.
    """
    bases = directory / "bases"
    made = {DECODER: checkpoints.make(decoder, bases), EMBEDDER: checkpoints.make(encoder, bases)}
    made[RERANKER] = _reranker(bases / RERANKER, checkpoints.SHAPES[encoder].settings)
    found: Models = {}
    (directory / GGUF_FILES).mkdir()
    for kind, count in COUNTS.items():
        for number in range(count):
            name = f"{kind}-{number}"
            checkpoint = directory / CHECKPOINTS / name
            copy(made[kind], checkpoint, shifted(number))
            write_gguf(directory / GGUF_FILES / f"{name}.gguf", checkpoint, _bfloat16, _metadata(kind, checkpoint))
            found[name] = KINDS[kind]
    shutil.rmtree(bases)
    write_broken(directory / CHECKPOINTS)
    (directory / GGUF_FILES / f"{BROKEN}.gguf").write_bytes(b"\0" * 64)
    return found


def _bfloat16(name: str, matrix: np.ndarray) -> tuple[np.ndarray, gguf.GGMLQuantizationType] | None:
    """The type of a matrix: bfloat16, or float32 for tables of which llama.cpp adds the rows to those of the tokens."""
    in_float32 = name.startswith(("position_embd", "token_types"))
    return None if in_float32 else of_type(gguf.GGMLQuantizationType.BF16)(name, matrix)


def _metadata(kind: str, checkpoint: Path) -> Callable[[gguf.GGUFWriter], None]:
    """What the GGUF file of a model has besides its settings and weights."""
    config = json.loads((checkpoint / "config.json").read_text())

    def add(writer: gguf.GGUFWriter) -> None:
        is_encoder = kind != DECODER
        add_bpe_tokenizer(writer, checkpoint, vocabulary.BOS, vocabulary.EOS, add_bos=is_encoder, add_eos=is_encoder)
        if is_encoder:
            writer.add_causal_attention(False)
            writer.add_pooling_type(gguf.PoolingType.MEAN if kind == EMBEDDER else gguf.PoolingType.RANK)
            writer.add_token_type_count(config["type_vocab_size"])

    return add


def _reranker(directory: Path, settings: dict[str, Any]) -> Path:
    """Write a random RoBERTa with one class. settings: of a BERT, for its sizes."""
    import transformers

    torch.manual_seed(0)
    positions = settings["max_position_embeddings"] + settings["pad_token_id"] + 1
    settings = {**settings, "max_position_embeddings": positions, "num_labels": 1, "type_vocab_size": 1}
    ends = {"bos_token_id": vocabulary.BOS, "eos_token_id": vocabulary.EOS}
    config = transformers.RobertaConfig(**settings, **ends)
    transformers.RobertaForSequenceClassification(config).save_pretrained(directory)
    vocabulary.write(directory, config.vocab_size, wrap=True)
    return directory
