"""Read from `modules.json` what a sentence-transformers checkpoint computes for a text.

The output is one vector, a set of weights of vocabulary entries (SPLADE), or the answer of a language model (a
reranker). `late_interaction_files` handles vectors per token. Source: Reimers and Gurevych 2019, arXiv:1908.10084;
files as https://sbert.net writes them, old and new. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from models.checkpoint.settings_files import read_settings
from models.checkpoint.transformer_settings import longest_text, refuse_other_vectors, transformer_settings
from models.config import Activation, ConfigError
from models.config.sentence import (
    AnswerLogits,
    DenseConfig,
    Pooling,
    SentenceConfig,
    VectorNormConfig,
    VocabularyWeights,
)
from models.families.shared.fields import Fields
from weights.json_files import NotJson, read_json_file
from weights.sentence_modules import CLIP, STATIC, STATIC_WEIGHTS, is_routed, module_kinds, side_modules

_MODES: Mapping[str, Pooling] = {
    "cls": "cls",
    "max": "max",
    "mean": "mean",
    "mean_sqrt_len_tokens": "mean_sqrt",
    "weightedmean": "weighted_mean",
    "lasttoken": "last",
}
_CLIP = ("clip", "clip_text_model")
"""Values of `model_type` whose text model itself computes one vector for a text."""
_FLAGS: Mapping[str, str] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_max_tokens": "max",
    "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "pooling_mode_weightedmean_tokens": "weightedmean",
    "pooling_mode_lasttoken": "lasttoken",
}
"""Pooling flags of older files, which have no `pooling_mode`, with the name of the mode. With several flags, the
vectors are concatenated in this order."""
_ACTIVATIONS: Mapping[str, Activation | None] = {
    "Identity": None,
    "Tanh": "tanh",
    "ReLU": "relu",
    "GELU": "gelu",
    "SiLU": "silu",
    "Sigmoid": "sigmoid",
}


def sentence_config(directory: Path, hidden_size: int, default_pooling: Pooling) -> SentenceConfig:
    """Read how a checkpoint computes the vector of a text.

    default_pooling: pooling of a checkpoint without `modules.json`. Its vectors are normalized to unit length.
    Raises ConfigError for a setting that is not supported; the message names it and its file.
    """
    modules = module_list(directory)
    if modules is None:
        return SentenceConfig((default_pooling,))
    kinds = [kind for kind, _ in modules]
    is_static, is_pooled = kinds[:1] == [STATIC], _gives_one_vector(directory, kinds)
    further = modules[1:] if is_static or is_pooled else modules[2:]
    middle = further[:-1] if kinds[-1:] == ["Normalize"] else further
    is_known = is_static or is_pooled or kinds[:2] == ["Transformer", "Pooling"]
    if not is_known or {kind for kind, _ in middle} - {"Dense", "LayerNorm"}:
        raise ConfigError(
            f"'modules.json': {', '.join(kinds)} is not supported, only Transformer, Pooling (CLIP: Transformer or "
            "CLIPModel alone) or StaticEmbedding, then Dense or LayerNorm, at last Normalize"
        )
    if not is_static:
        refuse_other_vectors(directory, read_settings(directory, "config.json") or {}, is_pooled)
    pooling: tuple[Pooling, ...] = ("mean",) if is_static else ("last",)
    include_prompt = True
    if not is_static and not is_pooled:
        pooling, include_prompt = _pooling(directory, modules[1][1], hidden_size)
    width = len(pooling) * hidden_size
    layers: list[DenseConfig | VectorNormConfig] = []
    for kind, folder in further:
        if kind == "Dense":
            layers.append(_dense(directory, folder, width))
            width = layers[-1].out_features
        elif kind == "LayerNorm":
            _settings(directory, folder).refuse_unless("dimension", width)
            layers.append(VectorNormConfig(folder, width))
        else:
            _refuse_other_vectors(Fields(read_settings(directory, f"{folder}/config.json") or {}))
    return SentenceConfig(
        pooling,
        include_prompt,
        tuple(layers),
        kinds[-1] == "Normalize",
        longest_text(directory),
        _dimensions(directory, width, kinds[-1] == "Normalize"),
    )


def _gives_one_vector(directory: Path, kinds: list[str]) -> bool:
    """Whether the transformer itself computes the vector of a text, as CLIP does, so that no pooling is needed.

    Recognises the module of CLIP in older and in newer releases of sentence-transformers.

    kinds: class names of the checkpoint's modules.
    """
    if (read_settings(directory, "config.json") or {}).get("model_type") not in _CLIP:
        return False
    return kinds[:1] == [CLIP] or (kinds[:1] == ["Transformer"] and "Pooling" not in kinds)


def _dimensions(directory: Path, width: int, normalize: bool) -> int | None:
    """Number of leading dimensions of a vector that the checkpoint keeps; None for all.

    width: width of the vector. normalize: whether vectors have unit length. Raises ConfigError for an invalid setting.
    """
    settings = Fields(read_settings(directory, "config_sentence_transformers.json") or {})
    dimensions = settings.optional_integer("truncate_dim")
    if dimensions is None or dimensions >= width:
        return None
    if dimensions < 1:
        raise ConfigError(f"'truncate_dim': {dimensions} is less than 1")
    if normalize and settings.raw("similarity_fn_name", "cosine") in ("dot", "dot_product", "euclidean", "manhattan"):
        raise ConfigError("'truncate_dim' after Normalize is supported with the similarity 'cosine' only")
    return dimensions


def module_list(directory: Path) -> list[tuple[str, str]] | None:
    """Class name and folder of each module in `modules.json`; None without the file.

    For a router, these are the modules for documents. Dropout, which acts in training only, is left out.
    Raises ConfigError for an invalid file, and if queries need another model than documents.
    """
    try:
        listed = read_json_file(directory, "modules.json")
        if listed is None:
            return None
        modules = module_kinds(directory)
        if not modules and is_routed(directory):
            raise ConfigError("'modules.json': the Router has no route for documents, or no 'router_config.json'")
        if not modules:
            raise TypeError
    except (NotJson, TypeError):
        raise ConfigError("'modules.json' is not a list of modules") from None
    _check_sides(directory, modules)
    return [(kind, folder) for kind, folder in modules if kind != "Dropout"]


def _check_sides(directory: Path, modules: list[tuple[str, str]]) -> None:
    """Raise ConfigError if queries need another model than documents.

    Queries may use the same modules as documents, or a static weight per token (inference-free SPLADE).
    """
    if not is_routed(directory):
        return
    for side in (None, "query"):
        other = side_modules(directory, side)
        kinds = [kind for kind, _ in other]
        if other and other != modules and kinds != [STATIC_WEIGHTS]:
            raise ConfigError(
                f"'router_config.json': a query route of {', '.join(kinds)} beside a document route of "
                f"{', '.join(kind for kind, _ in modules)} is two models, which `triptych serve NAME=PATH` "
                "loads; where models load on demand, save each route as a checkpoint of its own"
            )


def vocabulary_weights(directory: Path) -> VocabularyWeights | None:
    """The settings of a SPLADE checkpoint; None for any other checkpoint.

    Raises ConfigError for settings that are not supported.
    """
    modules = module_list(directory) or []
    kinds = [kind for kind, _ in modules]
    if "SpladePooling" not in kinds:
        return None
    if len(kinds) != 2 or kinds[0] not in ("Transformer", "MLMTransformer"):
        raise ConfigError(f"'modules.json': {', '.join(kinds)} is not supported, only Transformer, SpladePooling")
    fields = Fields(read_settings(directory, f"{modules[1][1]}/config.json") or {})
    fields.refuse_unless("pooling_strategy", "max", "sum")
    fields.refuse_unless("activation_function", "relu", "log1p_relu")
    return VocabularyWeights(
        "sum" if fields.text("pooling_strategy", "max") == "sum" else "max",
        2 if fields.text("activation_function", "relu") == "log1p_relu" else 1,
    )


def answer_logits(directory: Path) -> AnswerLogits | None:
    """The tokens whose logits are the score of a reranker that is a language model; None for any other checkpoint.

    Raises ConfigError for settings that are not supported.
    """
    modules = module_list(directory) or []
    kinds = [kind for kind, _ in modules]
    if "LogitScore" not in kinds:
        return None
    if kinds != ["Transformer", "LogitScore"]:
        raise ConfigError(f"'modules.json': {', '.join(kinds)} is not supported, only Transformer, LogitScore")
    fields = Fields(read_settings(directory, f"{modules[1][1]}/config.json") or {})
    fields.refuse_unless("module_input_name", "causal_logits")
    has_negative = fields.raw("false_token_id") is not None
    negative = fields.integer("false_token_id", least=0) if has_negative else None
    return AnswerLogits(fields.integer("true_token_id", least=0), negative, _adds_generation_prompt(directory))


def _adds_generation_prompt(directory: Path) -> bool:
    """Whether the chat template, which renders a query with a document, also writes the beginning of the answer.

    Raises ConfigError for other settings of the template.
    """
    settings = transformer_settings(directory)
    kinds = settings.raw("modality_config", {"message": {}})
    if not isinstance(kinds, dict) or "message" not in kinds:
        raise ConfigError("'modality_config': only pairs that a chat template renders are supported")
    given = settings.raw("processing_kwargs") or {}
    variables = given.get("chat_template") if isinstance(given, dict) else None
    if given and (list(given) != ["chat_template"] or not isinstance(variables, dict)):
        raise ConfigError("'processing_kwargs' is not supported, except 'add_generation_prompt' of 'chat_template'")
    variables = variables or {}
    if set(variables) - {"add_generation_prompt"}:
        raise ConfigError("'processing_kwargs' is not supported, except 'add_generation_prompt' of 'chat_template'")
    return Fields(variables).flag("add_generation_prompt", False)


def is_cross_encoder(directory: Path) -> bool:
    """Whether a checkpoint is a CrossEncoder of sentence-transformers, which uses the head of its architecture."""
    settings = read_settings(directory, "config_sentence_transformers.json") or {}
    return settings.get("model_type") == "CrossEncoder" and [kind for kind, _ in module_list(directory) or []] == [
        "Transformer"
    ]


def without_pooling(directory: Path, default_pooling: Pooling) -> SentenceConfig:
    """Settings for a checkpoint whose `modules.json` names no pooling: the default pooling, and the limit of tokens."""
    return SentenceConfig((default_pooling,), max_tokens=longest_text(directory))


def _pooling(directory: Path, folder: str, hidden_size: int) -> tuple[tuple[Pooling, ...], bool]:
    name = f"{folder}/config.json"
    settings = read_settings(directory, name) or {}
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
    fields = _settings(directory, folder)
    _refuse_other_vectors(fields)
    return _dense_config(fields, folder, width)


def token_dense(directory: Path, folder: str, width: int) -> DenseConfig:
    """The settings of a dense layer that is applied to each token. width: width of its input.

    Raises ConfigError for settings that are not supported.
    """
    fields = _settings(directory, folder)
    for name in ("module_input_name", "module_output_name"):
        fields.refuse_unless(name, "token_embeddings")
    return _dense_config(fields, folder, width)


def _settings(directory: Path, folder: str) -> Fields:
    settings = read_settings(directory, f"{folder}/config.json")
    if settings is None:
        raise ConfigError(f"'{folder}/config.json' is missing")
    return Fields(settings)


def _dense_config(fields: Fields, folder: str, width: int) -> DenseConfig:
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
        residual=fields.flag("use_residual", False),
    )


def _refuse_other_vectors(fields: Fields) -> None:
    for name in ("module_input_name", "module_output_name"):
        fields.refuse_unless(name, "sentence_embedding")
