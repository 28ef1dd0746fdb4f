"""Write two small GLiNER2 checkpoints in the published format. The weights depend only on the tensors' names.

`python -m tests.e2e.gliner2_checkpoints DIRECTORY` writes them, for `gliner2_oracle.py` in an environment with gliner2.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import transformers
from safetensors.torch import save_file

from tests.e2e.gliner_checkpoints import _ENCODERS, _SMALL, SPANS, TEXTS, _tokenizer, _weight

KINDS = {"projection": "count_lstm", "transformer": "count_lstm_v2"}
LABELS = ["person", "old place", "The"]
CLASSES = ["about animals", "about houses", "neither"]
TASK = "topic"
_TOKENS = "SEP_STRUCT SEP_TEXT P C E R L EXAMPLE OUTPUT DESCRIPTION"
_INNER = 128


def write(directory: Path, kind: str) -> Path:
    """Write one checkpoint: `config.json`, `encoder_config/config.json`, tokenizer and `model.safetensors`."""
    tokenizer = _tokenizer(SPANS)
    tokenizer.add_special_tokens({"additional_special_tokens": [f"[{name}]" for name in _TOKENS.split()]})
    tokenizer.save_pretrained(directory)
    encoder = {**_SMALL, **_ENCODERS[SPANS], "vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    settings = {"model_type": "extractor", "architectures": ["Extractor"], "model_name": "none", "max_width": 4}
    settings |= {"counting_layer": KINDS[kind], "token_pooling": "first"}
    (directory / "config.json").write_text(json.dumps(settings))
    (directory / "encoder_config").mkdir(exist_ok=True)
    (directory / "encoder_config" / "config.json").write_text(json.dumps(encoder))
    config = {key: value for key, value in encoder.items() if key != "model_type"}
    body = transformers.DebertaV2Model(transformers.DebertaV2Config(**config))
    shapes = {f"encoder.{name}": tuple(value.shape) for name, value in body.state_dict().items()}
    shapes |= _head_shapes(kind, int(_SMALL["hidden_size"]))
    save_file({name: _weight(name, shape) for name, shape in shapes.items()}, directory / "model.safetensors")
    return directory


def _head_shapes(kind: str, width: int) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"count_embed.pos_embedding.weight": (20, width)}

    def linear(name: str, outputs: int, inputs: int) -> None:
        shapes[f"{name}.weight"], shapes[f"{name}.bias"] = (outputs, inputs), (outputs,)

    for name, inputs in (("project_start", width), ("project_end", width), ("out_project", 2 * width)):
        linear(f"span_rep.span_rep_layer.{name}.0", 4 * width, inputs)
        linear(f"span_rep.span_rep_layer.{name}.3", width, 4 * width)
    for name, outputs in (("classifier", 1), ("count_pred", 20)):
        linear(f"{name}.0", 2 * width, width)
        linear(f"{name}.2", outputs, 2 * width)
    for part in "ih":
        shapes[f"count_embed.gru.weight_{part}h_l0"] = (3 * width, width)
        shapes[f"count_embed.gru.bias_{part}h_l0"] = (3 * width,)
    if kind == "projection":
        linear("count_embed.projector.0", 4 * width, 2 * width)
        linear("count_embed.projector.2", width, 4 * width)
        return shapes
    inner = "count_embed.transformer"
    linear(f"{inner}.in_projector", _INNER, width)
    for layer in range(2):
        name = f"{inner}.transformer.layers.{layer}"
        shapes[f"{name}.self_attn.in_proj_weight"] = (3 * _INNER, _INNER)
        shapes[f"{name}.self_attn.in_proj_bias"] = (3 * _INNER,)
        linear(f"{name}.self_attn.out_proj", _INNER, _INNER)
        linear(f"{name}.linear1", 2 * _INNER, _INNER)
        linear(f"{name}.linear2", _INNER, 2 * _INNER)
        for norm in ("norm1", "norm2"):
            shapes[f"{name}.{norm}.weight"] = shapes[f"{name}.{norm}.bias"] = (_INNER,)
    for layer, inputs in (("0", width + _INNER), ("2", width), ("4", width)):
        linear(f"{inner}.out_projector.{layer}", width, inputs)
    return shapes


if __name__ == "__main__":
    for kind in KINDS:
        write(Path(sys.argv[1]) / kind, kind)
    inputs = {"texts": TEXTS, "labels": LABELS, "classes": CLASSES, "task": TASK}
    (Path(sys.argv[1]) / "inputs.json").write_text(json.dumps(inputs))
