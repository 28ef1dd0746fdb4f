"""How a sentence-transformers checkpoint makes one vector of a text: reads `modules.json` and the files it names.

Reimers and Gurevych 2019, arXiv:1908.10084; files as https://sbert.net writes them, old and new. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.config import Activation, ConfigError
from models.config.sentence import DenseConfig, Pooling, SentenceConfig
from models.families.shared.fields import Fields
from models.json_file import json_object
from weights.json_files import NotJson, read_json_file

_MODES: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Flags of older files, which have no `pooling_mode`, in the order in which the vectors are concatenated."""
_ACTIVATIONS: Mapping[str, Activation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
}
_MAX_MODEL_LENGTH = 10_000_000
"""Larger values of `model_max_length` stand for "no limit"."""


def sentence_config(directory: Path, hidden_size: int, default_pooling: Pooling) -> SentenceConfig:
    """Read the settings of a checkpoint.

    default_pooling: for a checkpoint without `modules.json`; its vectors are normalized to unit length.
    Raises ConfigError with the file and the setting that is not supported.
    """
    try:
        listed = read_json_file(directory, "modules.json")
        if listed is None:
            return SentenceConfig((default_pooling,))
        modules = [(str(part["type"]).rpartition(".")[2], str(part["path"])) for part in listed]
    except (NotJson, TypeError, KeyError):
        raise ConfigError("'modules.json' is not a list of modules") from None
    # Dropout acts in training only.
    modules = [(kind, folder) for kind, folder in modules if kind != "Dropout"]
    kinds = [kind for kind, _ in modules]
    middle = kinds[2:-1] if kinds[-1:] == ["Normalize"] else kinds[2:]
    if kinds[:2] != ["Transformer", "Pooling"] or set(middle) - {"Dense"}:
        raise ConfigError(
            f"'modules.json': {', '.join(kinds)} is not supported, only Transformer, Pooling, Dense, Normalize"
        )
    if modules[0][1]:
        raise ConfigError(f"'modules.json': the transformer is in {modules[0][1]!r}; serve that folder's files instead")
    pooling, include_prompt = _pooling(directory, modules[1][1], hidden_size)
    width = len(pooling) * hidden_size
    dense: list[DenseConfig] = []
    for kind, folder in modules[2:]:
        if kind == "Dense":
            dense.append(_dense(directory, folder, width))
            width = dense[-1].out_features
        else:
            _refuse_other_vectors(Fields(json_object(directory, f"{folder}/config.json") or {}))
    return SentenceConfig(pooling, include_prompt, tuple(dense), kinds[-1] == "Normalize", _max_tokens(directory))


def _pooling(directory: Path, folder: str, hidden_size: int) -> tuple[tuple[Pooling, ...], bool]:
    name = f"{folder}/config.json"
    settings = json_object(directory, name) or {}
    fields = Fields(settings)
    for key in ("embedding_dimension", "word_embedding_dimension"):
        fields.refuse_unless(key, hidden_size)
    chosen = settings.get("pooling_mode")
    if chosen is None:
        if not _FLAGS.keys() & settings.keys():
            raise ConfigError(f"{name!r} has no pooling mode")
        chosen = [mode for flag, mode in _FLAGS.items() if fields.flag(flag, False)] or "mean"
    modes = [chosen] if isinstance(chosen, str) else chosen
    if not isinstance(modes, list) or not modes or not all(isinstance(mode, str) and mode in _MODES for mode in modes):
        raise ConfigError(f"{name!r}: 'pooling_mode' must be one or more of {', '.join(_MODES)}")
    return tuple(_MODES[mode] for mode in modes), fields.flag("include_prompt", True)


def _dense(directory: Path, folder: str, width: int) -> DenseConfig:
    settings = json_object(directory, f"{folder}/config.json")
    if settings is None:
        raise ConfigError(f"'{folder}/config.json' is missing")
    fields = Fields(settings)
    _refuse_other_vectors(fields)
    fields.refuse_unless("use_residual", False)
    fields.refuse_unless("in_features", width)
    function = fields.text("activation_function", "torch.nn.modules.activation.Tanh")
    package, _, name = function.rpartition(".")
    if not package.startswith("torch.nn.modules.") or name not in _ACTIVATIONS:
        raise ConfigError(f"'activation_function': {function[:80]!r} is not supported, only {', '.join(_ACTIVATIONS)}")
    return DenseConfig(
        folder,
        fields.integer("in_features"),
        fields.integer("out_features"),
        fields.flag("bias", True),
        _ACTIVATIONS[name],
    )


def _refuse_other_vectors(fields: Fields) -> None:
    for name in ("module_input_name", "module_output_name"):
        fields.refuse_unless(name, "sentence_embedding")


def _max_tokens(directory: Path) -> int | None:
    stated = Fields(json_object(directory, "sentence_bert_config.json") or {}).optional_integer("max_seq_length")
    if stated is not None:
        return stated
    limit = (json_object(directory, "tokenizer_config.json") or {}).get("model_max_length")
    return int(limit) if isinstance(limit, int | float) and 0 < limit <= _MAX_MODEL_LENGTH else None
