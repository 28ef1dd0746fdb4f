"""Read the settings of checkpoints with one vector per token: StaticEmbedding and Model2Vec. Imports no torch.

Neither library writes the sizes of the model to a file, so they are read from the shapes of the tensors. Sources:
sentence-transformers 6.2, `StaticEmbedding`; model2vec 0.10, `StaticModel` (https://github.com/MinishLab/model2vec).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from models.config import ConfigError
from models.families.shared.fields import Fields
from weights.json_files import NotJson, read_json_file
from weights.resolve import file_in
from weights.sentence_modules import static_vectors

MAX_TOKENS = 512
"""Limit in tokens for a text of Model2Vec, if `config.json` has no `max_length`."""

_HEAD_BYTES = 4096
_TRUNCATION = re.compile(rb'"truncation":\s*\{[^{}]*"max_length":\s*(\d{1,9})[,\s}]')
"""Matches the truncation in `tokenizer.json`. The `tokenizers` library writes it before the vocabulary, which can have
30 MB, so only the beginning of the file is searched."""


def static_settings(directory: Path) -> dict[str, Any] | None:
    """The settings of a checkpoint with one vector per token, in the form of a `config.json`; else None.

    Raises ConfigError for missing tensors and for settings that are not supported.
    """
    kind = static_vectors(directory)
    if not kind:
        return None
    shapes = _shapes(directory)
    table = shapes.get("embedding.weight", shapes.get("embeddings"))
    if table is None or len(table) != 2:
        raise ConfigError("'model.safetensors' has no matrix 'embedding.weight' or 'embeddings'")
    per_token = shapes.get("mapping", shapes.get("weights", table))
    settings: dict[str, Any] = {
        "model_type": "model2vec",
        "architectures": ["StaticModel"],
        "vocab_size": per_token[0],
        "hidden_size": table[1],
        "normalize": False,
        "max_length": _truncation(directory),
    }
    if kind == "model2vec":
        stated = _model2vec(directory)
        Fields(stated).refuse_unless("pooling", "mean")
        settings["max_length"] = stated.get("max_length", MAX_TOKENS)
        settings["normalize"] = Fields(stated).flag("normalize", False)
    return settings


def _model2vec(directory: Path) -> dict[str, Any]:
    try:
        stated = read_json_file(directory, "config.json")
    except NotJson as error:
        raise ConfigError(f"'config.json' is not a JSON object: {error.reason}") from None
    if not isinstance(stated, dict):
        raise ConfigError("'config.json' is not a JSON object")
    return stated


def _truncation(directory: Path) -> int | None:
    """Number of tokens after which `tokenizer.json` cuts texts; None if it does not."""
    path = file_in(directory, "tokenizer.json")
    if path is None:
        return None
    with path.open("rb") as file:
        found = _TRUNCATION.search(file.read(_HEAD_BYTES))
    return None if found is None else int(found[1])


def _shapes(directory: Path) -> dict[str, list[int]]:
    """Shapes of the tensors by name. Raises ConfigError if the weight file is missing or damaged."""
    path = file_in(directory, "model.safetensors")
    if path is None:
        raise ConfigError("a checkpoint of one vector per token needs 'model.safetensors'")
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError):
        raise ConfigError("'model.safetensors' is truncated or damaged") from None
