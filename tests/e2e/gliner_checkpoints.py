"""Write two small GLiNER checkpoints in the published format. The weights depend only on the tensors' names.

`python -m tests.e2e.gliner_checkpoints DIRECTORY` writes them, for `gliner_oracle.py` in an environment with gliner.
"""

from __future__ import annotations

import json
import re
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

from tests.text.encoder_checkpoints import BERT_TOKENS

SPANS, WORDS = "spans", "words"
TEXTS = [
    "The old sailor sees the café.",
    "Nobody doesn't like two houses! A small frog counts 1,234.56 of e-mails",
    " ".join(["My sister's friend will remember naïve questions?"] * 2),
    "a",
]
LABELS = ["person", "old place", "The"]
_SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
_ENCODERS = {
    SPANS: {
        "model_type": "deberta-v2",
        "max_position_embeddings": 512,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "position_buckets": 8,
        "norm_rel_ebd": "layer_norm",
        "share_att_key": True,
        "position_biased_input": False,
        "type_vocab_size": 0,
        "layer_norm_eps": 1e-7,
    },
    WORDS: {"model_type": "bert", "max_position_embeddings": 64, "type_vocab_size": 2},
}
_SETTINGS = {
    SPANS: {"hidden_size": 24, "span_mode": "markerV0", "num_rnn_layers": 1, "max_width": 4, "max_len": 20},
    WORDS: {"hidden_size": 32, "span_mode": "token_level", "num_rnn_layers": 2, "max_width": 12, "max_len": 20},
}


def write(directory: Path, kind: str) -> Path:
    """Write one checkpoint: `gliner_config.json`, tokenizer and `model.safetensors`."""
    tokenizer = _tokenizer(kind)
    tokenizer.add_tokens(["<<ENT>>", "<<SEP>>"], special_tokens=True)
    tokenizer.save_pretrained(directory)
    encoder = {**_SMALL, **_ENCODERS[kind], "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    settings = _SETTINGS[kind] | {
        "model_name": "none",
        "encoder_config": encoder,
        "class_token_index": len(tokenizer) - 2,
        "vocab_size": len(tokenizer),
        "subtoken_pooling": "first",
        "words_splitter_type": "whitespace",
        "ent_token": "<<ENT>>",
        "sep_token": "<<SEP>>",
    }
    (directory / "gliner_config.json").write_text(json.dumps(settings))
    config = {key: value for key, value in encoder.items() if key != "model_type"}
    body = {
        "deberta-v2": lambda: transformers.DebertaV2Model(transformers.DebertaV2Config(**config)),
        "bert": lambda: transformers.BertModel(transformers.BertConfig(**config)),
    }[str(encoder["model_type"])]()
    shapes = {f"token_rep_layer.bert_layer.model.{name}": value.shape for name, value in body.state_dict().items()}
    shapes |= _head_shapes(kind, int(_SETTINGS[kind]["hidden_size"]), _SMALL["hidden_size"])
    save_file({name: _weight(name, tuple(shape)) for name, shape in shapes.items()}, directory / "model.safetensors")
    return directory


def _tokenizer(kind: str) -> Any:
    """A tokenizer whose vocabulary is some words and all characters of the texts.

    Its vocabulary is written here and not trained, because training would order the tokens differently each time.
    """
    texts = " ".join([*TEXTS, *LABELS]) if kind == SPANS else " ".join([*TEXTS, *LABELS]).lower()
    words = sorted(set(re.findall(r"\w{3,}", texts)))[::2]
    characters = sorted({*texts, *"abcdefghijklmnopqrstuvwxyz"} - {" "})
    if kind == WORDS:
        pieces = [*BERT_TOKENS, "[MASK]", *words, *characters, *(f"##{character}" for character in characters)]
        return transformers.BertTokenizer(vocab={piece: index for index, piece in enumerate(pieces)})
    pieces = [*(f"▁{word}" for word in words), "▁", *characters]
    scored = [(piece, -2.0 - index / 64) for index, piece in enumerate(pieces)]
    special = [(token, 0.0) for token in (*BERT_TOKENS, "[MASK]")]
    return transformers.DebertaV2Tokenizer(vocab=[*special[:-1], *scored, special[-1]])


def _head_shapes(kind: str, width: int, inside: int) -> dict[str, tuple[int, ...]]:
    def linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
        return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

    def projection(name: str, inputs: int, inner: int, outputs: int) -> dict[str, tuple[int, ...]]:
        return linear(f"{name}.0", inner, inputs) | linear(f"{name}.3", outputs, inner)

    shapes = {} if width == inside else linear("token_rep_layer.projection", width, inside)
    for layer in range(int(_SETTINGS[kind]["num_rnn_layers"])):
        for end in ("", "_reverse"):
            for part in "ih":
                shapes[f"rnn.lstm.weight_{part}h_l{layer}{end}"] = (2 * width, width if part == "i" else width // 2)
                shapes[f"rnn.lstm.bias_{part}h_l{layer}{end}"] = (2 * width,)
    if kind == SPANS:
        spans = "span_rep_layer.span_rep_layer"
        for name in (f"{spans}.project_start", f"{spans}.project_end", "prompt_rep_layer"):
            shapes |= projection(name, width, 4 * width, width)
        return shapes | projection(f"{spans}.out_project", 2 * width, 4 * width, width)
    shapes |= linear("scorer.proj_token", 2 * width, width) | linear("scorer.proj_label", 2 * width, width)
    return shapes | projection("scorer.out_mlp", 3 * width, 4 * width, 3)


def _weight(name: str, shape: tuple[int, ...]) -> torch.Tensor:
    if name.endswith(("position_ids", "token_type_ids")):
        return torch.arange(shape[-1]).expand(shape).contiguous()
    values = np.random.default_rng(zlib.crc32(name.encode())).random(shape) - 0.5
    is_norm = "LayerNorm.weight" in name
    return torch.from_numpy(values * (0.2 if is_norm else 0.4) + (1.0 if is_norm else 0.0)).float()


if __name__ == "__main__":
    for kind in (SPANS, WORDS):
        write(Path(sys.argv[1]) / kind, kind)
    (Path(sys.argv[1]) / "inputs.json").write_text(json.dumps({"texts": TEXTS, "labels": LABELS}))
