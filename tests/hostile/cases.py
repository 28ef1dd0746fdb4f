"""Hostile checkpoints. Each case is a function that changes the files of a small valid checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.hostile import gguf_cases
from tests.hostile.base import config, generation, tokenizer, write_json
from tests.hostile.head_cases import HEADS
from tests.hostile.pieces import pieces
from tests.hostile.prediction_cases import PREDICTION_HEADS
from tests.hostile.rounded_cases import ROUNDED
from tests.hostile.text_cases import TEXTS
from tests.hostile.weight_cases import ESCAPES, LONG, WEIGHTS, Case, text_file


def _vocabulary(count: int) -> Case:
    def change(content: dict[str, Any]) -> None:
        content["model"]["vocab"] |= {f"x{number}": 260 + number for number in range(count)}

    return tokenizer(change)


def _labels(directory: Path) -> None:
    labels = {str(number): "x" for number in range(1_000_000)}
    config(architectures=["LlamaForSequenceClassification"], id2label=labels)(directory)


def _other_tokenizer(name: str, content: bytes, **settings: Any) -> Case:
    def apply(directory: Path) -> None:
        (directory / "tokenizer.json").unlink()
        write_json(directory, "tokenizer_config.json", settings)
        (directory / name).write_bytes(content)

    return apply


def _sentencepiece(content: bytes) -> Case:
    return _other_tokenizer("tokenizer.model", content, tokenizer_class="LlamaTokenizer")


def _control_pieces(count: int) -> bytes:
    return b"".join(
        bytes([10, len(text) + 4, 10, len(text)]) + text + b"\x18\x03"
        for text in (b"<%d>" % number for number in range(count))
    )


def _many_pieces(directory: Path) -> None:
    _sentencepiece(pieces(["<unk>", *map(str, range(1_500_000))]))(directory)


def _adapter(settings: Mapping[str, Any], names: Mapping[str, Any] | None = None) -> Case:
    """Return a case that writes an adapter to the folder `adapter` of the checkpoint. settings: of the adapter."""

    def apply(directory: Path) -> None:
        folder = directory / "adapter"
        folder.mkdir()
        known = {"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["up_proj"], "bias": "none"}
        write_json(folder, "adapter_config.json", known | settings)
        from safetensors.numpy import save_file

        prefix = "base_model.model.model.layers.{}.mlp.up_proj.lora_{}.weight"
        factors = {
            prefix.format(layer, side): np.ones(shape, np.float32)
            for layer in range(2)
            for side, shape in (("A", (2, 16)), ("B", (32, 2)))
        }
        save_file(dict(factors if names is None else names), folder / "adapter_model.safetensors")

    return apply


def _many_adapted(directory: Path) -> None:
    number = np.ones((1, 1), np.float32)
    names = {f"base_model.model.x{index}.lora_A.weight": number for index in range(300_000)}
    _adapter({}, names)(directory)


def _yarn(**settings: Any) -> Case:
    return config(rope_scaling={"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, **settings})


CONFIGS: dict[str, Case] = {
    "num_hidden_layers 100,000": config(num_hidden_layers=100_000),
    "num_hidden_layers 1,000": config(num_hidden_layers=1_000),
    "num_hidden_layers 1e9": config(num_hidden_layers=10**9),
    "head_dim 1e9": config(head_dim=10**9),
    "head_dim 1e6": config(head_dim=10**6),
    "num_attention_heads 1e9": config(num_attention_heads=10**9, num_key_value_heads=10**9),
    "hidden_size 1e9": config(hidden_size=10**9),
    "intermediate_size 1e12": config(intermediate_size=10**12),
    "vocab_size 1e9": config(vocab_size=10**9),
    "vocab_size of 400 digits": config(vocab_size=10**400),
    "max_position_embeddings 1e30": config(max_position_embeddings=10**30),
    "rms_norm_eps of 400 digits": config(rms_norm_eps=10**400),
    "rms_norm_eps 1e300": config(rms_norm_eps=1e300),
    "rope_theta NaN": config(rope_theta=float("nan")),
    "rope_theta infinity": config(rope_theta=float("inf")),
    "rope_theta 0": config(rope_theta=0),
    "rope_theta -1": config(rope_theta=-1),
    "rope_theta 1e308": config(rope_theta=1e308),
    "rope_theta of 400 digits": config(rope_theta=10**400),
    "rope_scaling linear, factor 1e300": config(rope_scaling={"type": "linear", "factor": 1e300}),
    "rope_scaling dynamic, factor 1e300": config(rope_scaling={"type": "dynamic", "factor": 1e300}),
    "rope_scaling linear, factor 1e-300": config(rope_scaling={"type": "linear", "factor": 1e-300}),
    "rope_scaling yarn, factor 1e300": _yarn(factor=1e300),
    "rope_scaling yarn, beta_fast 1e300": _yarn(beta_fast=1e300),
    "rope_scaling yarn, original length 1e18": _yarn(original_max_position_embeddings=10**18),
    "rope_scaling llama3, factors 1e300": config(
        rope_scaling={
            "rope_type": "llama3",
            "factor": 1e300,
            "low_freq_factor": 1e300,
            "high_freq_factor": 1e300,
            "original_max_position_embeddings": 64,
        }
    ),
    "rope_parameters, rope_theta -1": config(rope_parameters={"rope_type": "default", "rope_theta": -1}),
    "rope_parameters, rope_theta NaN": config(rope_parameters={"rope_type": "default", "rope_theta": float("nan")}),
    "sliding_window 1e30": config(model_type="mistral", architectures=["MistralForCausalLM"], sliding_window=10**30),
    "num_local_experts 1e9": config(
        model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=10**9, num_experts_per_tok=2
    ),
    "layers of a mixture 1e9": config(
        model_type="mixtral", architectures=["MixtralForCausalLM"], num_local_experts=1000, num_hidden_layers=1000
    ),
    "num_hidden_layers of a shared layer 1e9": config(
        model_type="albert", architectures=["AlbertModel"], num_hidden_layers=10**9, embedding_size=16
    ),
    "positions of a table of sines 1e10": config(
        model_type="xglm",
        architectures=["XGLMForCausalLM"],
        d_model=16,
        ffn_dim=32,
        num_layers=2,
        attention_heads=2,
        max_position_embeddings=10**9,
    ),
    "id2label with 1,000,000 labels": _labels,
    "config.json, 100,000 brackets": text_file("config.json", b"[" * 100_000),
    "config.json of 200 MB": text_file("config.json", b'{"model_type": "llama", "x": [', 200 << 20),
    "model_type with escapes": config(model_type="\x1b[2Jllama"),
    "architectures of 5,000 characters": config(architectures=[LONG]),
    "unknown activation with escapes": config(hidden_act="\x1b]0;owned\x07" + LONG),
}


GENERATIONS: dict[str, Case] = {
    "top_k 1e30": generation(top_k=10**30),
    "top_k -1": generation(top_k=-1),
    "num_beams 1e9": generation(num_beams=10**9),
    "num_beams 0": generation(num_beams=0),
    "max_new_tokens 1e30": generation(max_new_tokens=10**30),
    "min_new_tokens 1e30": generation(min_new_tokens=10**30),
    "no_repeat_ngram_size 1e30": generation(no_repeat_ngram_size=10**30),
    "temperature NaN": generation(temperature=float("nan")),
    "temperature -1": generation(temperature=-1.0),
    "temperature of 400 digits": generation(temperature=10**400),
    "top_p 7": generation(top_p=7.0),
    "typical_p infinity": generation(typical_p=float("inf")),
    "repetition_penalty 0": generation(repetition_penalty=0.0),
    "repetition_penalty 1e300": generation(repetition_penalty=1e300),
    "length_penalty NaN": generation(length_penalty=float("nan")),
    "100,000 bad words": generation(bad_words_ids=[[7]] * 100_000),
    "100,000 end tokens": generation(eos_token_id=[7] * 100_000),
    "generation_config.json of 9 MB": generation(bad_words_ids=[[7]] * 3_000_000),
}


ADAPTERS: dict[str, Case] = {
    "adapter, r 1e30": _adapter({"r": 10**30}),
    "adapter, lora_alpha NaN": _adapter({"lora_alpha": float("nan")}),
    "adapter, lora_alpha of 400 digits": _adapter({"lora_alpha": 10**400}),
    "adapter, target_modules that backtrack": _adapter({"target_modules": "(([a-z._0-9]+)+)+!"}),
    "adapter, rank_pattern that backtracks": _adapter({"rank_pattern": {"(([a-z._0-9]+)+)+!": 2}}),
    "adapter, tensor's name with escapes": _adapter({}, {ESCAPES: np.ones((2, 2), np.float32)}),
    "adapter, 300,000 tensors": _many_adapted,
}


TOKENIZERS: dict[str, Case] = {
    "2,000,000 extra vocabulary entries": _vocabulary(2_000_000),
    "vocabulary entry of 10 MB": tokenizer(lambda content: content["model"]["vocab"].update({"x" * 10_000_000: 260})),
    "id of a vocabulary entry 4e9": tokenizer(lambda content: content["model"]["vocab"].update({"xx": 4_000_000_000})),
    "200,000 added tokens": tokenizer(
        lambda content: content["added_tokens"].extend(
            {
                "id": 300 + number,
                "content": f"<{number}>",
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number in range(200_000)
        )
    ),
    "added_tokens_decoder, id of 400 digits": lambda directory: write_json(
        directory, "tokenizer_config.json", {"added_tokens_decoder": {"9" * 400: {"content": "x"}}}
    ),
    "added tokens of 16 MB": tokenizer(
        lambda content: content["added_tokens"].extend(
            {
                "id": 300 + number,
                "content": f"{number}" + "\U0001f600" * 500,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": False,
            }
            for number in range(8000)
        )
    ),
    "chat template of 3 GB": text_file("chat_template.jinja", b"", 3 << 30),
    "tokenizer.json that nests": text_file("tokenizer.json", b"[" * 1_000_000),
    "added_tokens.json, 300,000 added tokens": lambda directory: write_json(
        directory, "added_tokens.json", {f"<{number}>": 300 + number for number in range(300_000)}
    ),
    "sentencepiece, cut": _sentencepiece(pieces(["<unk>", "a", "b"])[:-3]),
    "sentencepiece, length beyond the file": _sentencepiece(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f"),
    "sentencepiece, number without an end": _sentencepiece(b"\xff" * 2_000_000),
    "sentencepiece, piece of 20,000 characters": _sentencepiece(pieces(["<unk>", "a" * 20_000, "b"], model_type=2)),
    "sentencepiece, 1,500,000 pieces": _many_pieces,
    "sentencepiece, scores NaN": _sentencepiece(pieces(["<unk>", "a", "b"], score=float("nan"))),
    "sentencepiece, character map cut": _sentencepiece(pieces(["<unk>", "a", "b"], charsmap=b"\xff\xff\xff\x7f")),
    "sentencepiece, a text that is a number": _sentencepiece(
        b"\x0a\x06\x08\xff\xff\xff\xff\x07" + pieces(["<unk>", "a"])
    ),
    "sentencepiece, 20,000,000 settings": _sentencepiece(
        pieces(["<unk>", "a"]) + b"\x12\x80\xb4\x89\x13" + b"\x20\x00" * 20_000_000
    ),
    "sentencepiece, pieces that are all pairs of each other": _sentencepiece(
        pieces(["<unk>", *("a" * size for size in range(1, 2000))], model_type=2)
    ),
    "sentencepiece, 200,000 control pieces": _sentencepiece(pieces(["<unk>"]) + _control_pieces(200_000)),
    "sentencepiece, pieces of nothing": _sentencepiece(b"\x0a\x00" * 1_000_000),
    "vocab.txt, 1,500,000 lines": _other_tokenizer("vocab.txt", b"a\n" * 1_500_000, tokenizer_class="BertTokenizer"),
}


SLOW = frozenset(
    (
        "300,000 shards",
        "index of 4,500,000 tensors",
        "1,600,000 tensors in a header",
        "shape of 45,000,000 numbers",
        "sentencepiece, 20,000,000 settings",
        "index of 40 MB",
        "300,000 empty tensors",
        "300,000 unused tensors",
        "300,000 pickled tensors",
        "compressed archive of 2 GB",
        "quantized, expression that backtracks",
        "adapter, 300,000 tensors",
        "adapter, target_modules that backtrack",
        "adapter, rank_pattern that backtracks",
        "2,000,000 extra vocabulary entries",
        "sentencepiece, 1,500,000 pieces",
        "sentencepiece, pieces of nothing",
        "id2label with 1,000,000 labels",
        "GGUF, 1,500,000 entries",
        "GGUF, 500,000 keys",
        "GGUF, 200,000 tensors",
    )
)
"""Cases that take seconds. `make test` leaves them out; `python -m tests.hostile` and `make chaos` run them."""


CASES: dict[str, Mapping[str, Case]] = {
    "config.json": CONFIGS,
    "generation_config.json": GENERATIONS,
    "weights": WEIGHTS,
    "rounded weights": ROUNDED,
    "draft heads": HEADS,
    "prediction heads": PREDICTION_HEADS,
    "adapters": ADAPTERS,
    "tokenizers": TOKENIZERS,
    "other texts": TEXTS,
    "GGUF": gguf_cases.CASES,
}


def write_case(case: Case, directory: Path) -> tuple[Path, Path | None, Path | None]:
    """Apply a case to a checkpoint. Returns the paths of the checkpoint, its adapter and its draft head, or None."""
    changed = case(directory)
    adapter, head = directory / "adapter", directory / "head"
    return changed or directory, adapter if adapter.is_dir() else None, head if head.is_dir() else None
