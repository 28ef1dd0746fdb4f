"""Settings of the transformer of a sentence-transformers checkpoint: the longest text, and what is not supported.

The file is `sentence_bert_config.json`, or one of its other names. Its arguments of transformers, `model_kwargs`,
`processor_kwargs` and `config_kwargs`, are `model_args`, `tokenizer_args` and `config_args` in older files. Source:
`Transformer` of sentence-transformers 6.2. Imports no torch.
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
"""Larger values of `model_max_length` stand for "no limit"."""
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
"""Arguments that change no vector, or that are read here."""
_TEXT = frozenset(("max_length", "padding", "pad_to_multiple_of", "truncation"))
"""Arguments of a call of the tokenizer that change no vector, or that are read here."""


def transformer_settings(directory: Path) -> Fields:
    """The settings of the transformer, from the first of their files that exists."""
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
    """The value of `model_max_length` as a limit; None for no limit."""
    return int(value) if isinstance(value, int | float) and 0 < value <= _MAX_MODEL_LENGTH else None


def refuse_other_vectors(directory: Path, hf: Mapping[str, Any], is_pooled: bool = False) -> None:
    """Raise ConfigError for a setting that changes the token vectors or the tokens and is not supported.

    hf: contents of `config.json`. is_pooled: the transformer gives the vector of a text (CLIP), not of each token.
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
    """Arguments for transformers, by their new name or, where a file has both, by the old one."""
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
