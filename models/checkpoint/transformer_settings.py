"""Settings of the transformer module of a sentence-transformers checkpoint: token limit, unsupported settings.

The settings are in `sentence_bert_config.json`, or in a file with an older name. The file has arguments for
transformers: `model_kwargs`, `processor_kwargs` and `config_kwargs`, which older files call `model_args`,
`tokenizer_args` and `config_args`. Source: `Transformer` of sentence-transformers 6.2. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.settings_files import read_settings
from models.config import ConfigError
from models.families.shared.fields import Fields, short
from weights.sentence_modules import SETTINGS_FILES

_MAX_MODEL_LENGTH = 10_000_000
"""Values of `model_max_length` above this mean "no limit"."""
_OTHER_NAMES = {"model_args": "model_kwargs", "tokenizer_args": "processor_kwargs", "config_args": "config_kwargs"}
_DOWNLOAD = frozenset(("trust_remote_code", "revision", "code_revision", "token", "cache_dir", "local_files_only"))
_HARMLESS: Mapping[str, frozenset[str]] = {
    "model_kwargs": _DOWNLOAD
    | {
        "add_pooling_layer",
        "attn_implementation",
        "device_map",
        "dtype",
        "low_cpu_mem_usage",
        "torch_dtype",
        "use_safetensors",
        "weights_only",
    },
    "processor_kwargs": _DOWNLOAD | {"model_max_length", "padding", "padding_side", "use_fast"},
    "config_kwargs": _DOWNLOAD
    | {"attn_implementation", "dtype", "output_attentions", "output_hidden_states", "torch_dtype", "use_cache"},
}
"""Arguments for transformers that are accepted: they do not change the vectors, or this file reads them."""
_TEXT = frozenset(("max_length", "padding", "pad_to_multiple_of", "truncation"))
"""Arguments for a call of the tokenizer that are accepted: they do not change the vectors, or this file reads them."""


def transformer_settings(directory: Path) -> Fields:
    """The settings of the transformer, from the first settings file that exists; empty without such a file."""
    found = (read_settings(directory, name) for name in SETTINGS_FILES)
    return Fields(next((settings for settings in found if settings), {}))


def longest_text(directory: Path) -> int | None:
    """Number of tokens after which texts are cut; None without a limit."""
    settings = transformer_settings(directory)
    stated = Fields(_text_arguments(settings)).optional_integer("max_length")
    if stated is not None:
        return stated
    argument = _arguments(settings, "processor_kwargs").get("model_max_length")
    if argument is not None:
        return _limit(argument)
    stated = settings.optional_integer("max_seq_length")
    if stated is not None:
        return stated
    return _limit((read_settings(directory, "tokenizer_config.json") or {}).get("model_max_length"))


def _limit(value: Any) -> int | None:
    """The value of `model_max_length` as a limit in tokens; None if it means "no limit"."""
    return int(value) if isinstance(value, int | float) and 0 < value <= _MAX_MODEL_LENGTH else None


def refuse_other_vectors(directory: Path, hf: Mapping[str, Any], is_pooled: bool = False) -> None:
    """Raise ConfigError for a setting that changes the tokens or their vectors and is not supported.

    hf: contents of `config.json`. is_pooled: whether the transformer computes the vector of a text (CLIP), not one per
        token.
    """
    settings = transformer_settings(directory)
    settings.refuse_unless("transformer_task", "feature-extraction")
    settings.refuse_unless("module_output_name", "sentence_embedding" if is_pooled else "token_embeddings")
    settings.refuse_unless("tokenizer_name_or_path", None)
    modalities = _object(settings.raw("modality_config"), "modality_config")
    if modalities and "text" not in modalities:
        raise ConfigError("'modality_config' has no 'text': texts that a chat template renders are not supported")
    text = Fields(_object(modalities.get("text"), "modality_config"))
    text.refuse_unless("method", "get_text_features" if is_pooled else "forward")
    text.refuse_unless("method_output_name", "pooler_output" if is_pooled else "last_hidden_state")
    for name, harmless in _HARMLESS.items():
        for key, value in _arguments(settings, name).items():
            if key in harmless or (name == "config_kwargs" and key in hf and hf[key] == value):
                continue
            if (key, value) != ("truncation_side", "right"):
                raise ConfigError(f"{name!r}: {short(key)} is not supported: write it into the file that it is about")
    for key in _text_arguments(settings):
        if key not in _TEXT:
            raise ConfigError(f"'processing_kwargs': {short(key)} of the texts is not supported")


def _arguments(settings: Fields, name: str) -> Mapping[str, Any]:
    """Arguments for transformers from the settings. name: new name of the setting.

    A value under its old name takes precedence.
    """
    old = next(old for old, new in _OTHER_NAMES.items() if new == name)
    given = settings.raw(old)
    return _object(settings.raw(name) if given is None else given, name)


def _text_arguments(settings: Fields) -> Mapping[str, Any]:
    given = _object(settings.raw("processing_kwargs"), "processing_kwargs")
    return _object(given.get("text"), "processing_kwargs")


def _object(value: Any, name: str) -> Mapping[str, Any]:
    if value is not None and not isinstance(value, dict):
        raise ConfigError(f"{name!r} must be an object, not {short(value)}")
    return value or {}
