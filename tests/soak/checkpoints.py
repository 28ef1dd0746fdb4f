"""Checkpoints for the long runs: forty models of published sizes, copies of the demo models, and a large llama."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from benchmarks import checkpoints, random_checkpoints, vocabulary
from tests.audio.wavs import wav
from tests.e2e.conftest import REPOSITORY
from tests.parity import speech

DEMO = REPOSITORY / "weights" / "demo"
BROKEN = "broken"


@dataclass(frozen=True)
class Kind:
    """Models that get the same request.

    path, body: the request; without `body`, a recording is sent. answer: the part of the answer that does not depend on
    time.
    """

    path: str
    body: Mapping[str, Any] | None
    answer: Callable[[Any], Any]


def _text(answer: Any) -> Any:
    return answer["choices"][0]["text"]


GENERATE = Kind(
    "/generate", {"prompt": "the old fox ran to the sea " * 12, "max_new_tokens": 12, "do_sample": False}, _text
)
EMBED = Kind("/embed", {"inputs": ["the dog chased the cat"]}, lambda answer: answer)
CLASSIFY = Kind("/classify", {"inputs": "i loved this wonderful film"}, lambda answer: answer)
TRANSCRIBE = Kind("/v1/audio/transcriptions", None, lambda answer: answer["text"])
TRANSLATE = Kind(
    "/translate",
    {"inputs": ["I am a student"], "source_lang": "en", "target_lang": "fr"},
    lambda answer: [translation["text"] for translation in answer["translations"]],
)
RECORDING = wav(speech.recording(1.0))
"""One second of sound."""

Models = dict[str, Kind]


def demo_copies(directory: Path, count: int) -> Models:
    """Write copies of the demo models, each with its own weights, and a broken one. Returns the kind of each model."""
    kinds = {"story": GENERATE, "translator-en-fr": TRANSLATE, "sentence-encoder": EMBED, "sentiment": CLASSIFY}
    found: Models = {}
    for number in range(count):
        name = list(kinds)[number % len(kinds)]
        copy(DEMO / name, directory / f"{name}-{number}", _scaled(1 + 0.002 * number))
        found[f"{name}-{number}"] = kinds[name]
    write_broken(directory)
    return found


def published_sizes(directory: Path) -> Models:
    """Write 30 Marian models, 4 embedders, 2 classifiers, 3 decoders and a Whisper, and a broken one.

    All in bfloat16, 6 GB together. Returns the kind of each model.
    """
    bases = directory.with_name(directory.name + "-bases")
    found: Models = {}
    for shape, count, kind in (("marian-74m", 30, GENERATE), ("minilm-22m", 4, EMBED), ("llama-135m", 3, GENERATE)):
        base = checkpoints.make(shape, bases)
        for number in range(count):
            name = f"{shape.partition('-')[0]}-{number}"
            copy(base, directory / name, shifted(number))
            found[name] = kind
    base = _classifier(bases / "classifier")
    for number in range(2):
        copy(base, directory / f"classifier-{number}", shifted(number))
        found[f"classifier-{number}"] = CLASSIFY
    _whisper(directory / "whisper")
    found["whisper"] = TRANSCRIBE
    shutil.rmtree(bases)
    write_broken(directory)
    return found


def large_llama(directory: Path, layers: int = 16) -> Path:
    """Write a random llama of 1.1 billion parameters in bfloat16, or one with fewer layers. Returns its directory."""
    shape = {"hidden_size": 2048, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 8}
    shape |= {"head_dim": 64, "vocab_size": 49152, "tie_word_embeddings": True, "max_position_embeddings": 8192}
    shape |= {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers}
    shape |= {"rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu"}
    shape |= {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    return random_checkpoints.write(directory, shape, torch.bfloat16, torch.device("cpu"))


def _scaled(factor: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """A change of the tensors of a checkpoint: all are multiplied by a factor."""
    return lambda tensor: (tensor * factor).to(tensor.dtype)


def shifted(number: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """A change of the random tensors of a checkpoint: their numbers, in bfloat16, are shifted to other places."""
    return lambda tensor: tensor.to(torch.bfloat16).flatten().roll(7919 * number).view(tensor.shape)


def copy(base: Path, directory: Path, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Copy a checkpoint, with each of its tensors changed."""
    shutil.copytree(base, directory, ignore=shutil.ignore_patterns("model.safetensors"))
    weights = {name: change(tensor) for name, tensor in load_file(base / "model.safetensors").items()}
    save_file(weights, directory / "model.safetensors", metadata={"format": "pt"})


def write_broken(directory: Path) -> None:
    """Write a checkpoint whose file of weights is not one."""
    shutil.copytree(DEMO / "story", directory / BROKEN)
    (directory / BROKEN / "model.safetensors").write_bytes(b"\0" * 64)


def _classifier(directory: Path) -> Path:
    """Write a BERT of MiniLM's size with three classes."""
    import transformers

    torch.manual_seed(0)
    settings = checkpoints.SHAPES["minilm-22m"].settings
    labels = {0: "bad", 1: "neutral", 2: "good"}
    config = transformers.BertConfig(**settings, id2label=labels, label2id={name: key for key, name in labels.items()})
    transformers.BertForSequenceClassification(config).save_pretrained(directory)
    vocabulary.write(directory, config.vocab_size, wrap=True)
    return directory


def _whisper(directory: Path) -> None:
    """Write a Whisper with the layers of the published `tiny`, and the window and vocabulary of the tests."""
    import transformers

    layers = {"layers": 4, "attention_heads": 6, "ffn_dim": 1536}
    sizes = {f"{side}_{part}": size for side in ("encoder", "decoder") for part, size in layers.items()}
    config = transformers.WhisperConfig(**{**speech.SHAPES["whisper"].to_dict(), **sizes, "d_model": 384})
    speech.write(directory, config)
    speech.write_tokenizer(directory)
