"""Read from the files of a checkpoint whether and how it computes one vector per token, for late interaction.

Imports no torch. Three layouts are supported:

- ColBERT as its authors publish it: architecture `HF_ColBERT`, settings in `artifact.metadata`, the matrix
  `linear.weight` among the weights of the encoder (Khattab and Zaharia 2020,
  https://github.com/stanford-futuredata/ColBERT).
- sentence-transformers `MultiVectorEncoder`, and PyLate `ColBERT`, whose markers are in
  `config_sentence_transformers.json` (https://sbert.net, https://github.com/lightonai/pylate).
- BGE-M3: `colbert_linear.pt` and the files of a sentence embedding model (Chen et al. 2024, arXiv:2402.03216).
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.sentence_files import module_list, token_dense
from models.checkpoint.settings_files import read_settings
from models.config import AttentionConfig, ConfigError, ModelConfig
from models.config.late_interaction import LateInteractionConfig, QueryExpansion, TextSide
from models.config.sentence import DenseConfig
from models.families.shared.fields import Fields, short
from weights.bounded_json import BadJson, parse_json
from weights.gguf.choose import is_gguf
from weights.resolve import file_in

COLBERT_CLASS = "HF_ColBERT"
TOKEN_WEIGHTS_FILE, TOKEN_VECTORS_FILE = "sparse_linear.pt", "colbert_linear.pt"
_ROOT_SETTINGS = "config_sentence_transformers.json"
_PYLATE_SETTINGS = frozenset(
    (
        "query_prefix",
        "document_prefix",
        "query_length",
        "document_length",
        "do_query_expansion",
        "attend_to_expansion_tokens",
        "skiplist_words",
    )
)
_PUNCTUATION = tuple(string.punctuation)


def is_colbert(hf: Mapping[str, Any]) -> bool:
    """Whether a `config.json` belongs to a checkpoint that the authors of ColBERT published."""
    return hf.get("architectures") == [COLBERT_CLASS]


def is_multi_vector(directory: Path) -> bool:
    """Whether a checkpoint with `modules.json` computes a vector per token instead of a vector per text."""
    settings = read_settings(directory, _ROOT_SETTINGS) or {}
    return settings.get("model_type") in ("MultiVectorEncoder", "ColBERT") or bool(_PYLATE_SETTINGS & settings.keys())


def has_token_heads(directory: Path) -> bool:
    """Whether a checkpoint has the two matrices that BGE-M3 applies to each token."""
    if is_gguf(directory):
        return False
    return all(file_in(directory, name) is not None for name in (TOKEN_WEIGHTS_FILE, TOKEN_VECTORS_FILE))


def late_interaction_config(directory: Path, hf: Mapping[str, Any], hidden_size: int) -> LateInteractionConfig | None:
    """The settings of the late-interaction head of a checkpoint; None for a checkpoint without one.

    hf: contents of `config.json`. Raises ConfigError for settings that are not supported.
    """
    if is_colbert(hf):
        return _colbert(directory, hidden_size)
    if module_list(directory) is not None and is_multi_vector(directory):
        return _multi_vector(directory, hidden_size)
    if has_token_heads(directory):
        dense = DenseConfig("", hidden_size, hidden_size, True, None, file=TOKEN_VECTORS_FILE)
        return LateInteractionConfig((dense,), first_skipped=1, averages=True)
    return None


def check_attention(config: LateInteractionConfig, model: ModelConfig) -> None:
    """Raise ConfigError if no token may attend to the tokens added to a query, and the model does not support this."""
    if config.expansion is None or config.expansion.attended:
        return
    stack = model.encoder
    if stack is None:
        raise ConfigError("query tokens that no token attends to are supported for encoders only")
    for layer in stack.layers:
        attention = layer.attention
        if type(attention) is not AttentionConfig:
            kind = type(attention).__name__
            raise ConfigError(f"query tokens that no token attends to are not supported for {kind}")
        window = attention.window
        if window is not None and window < config.expansion.length:
            raise ConfigError(
                f"a query of {config.expansion.length} tokens is longer than the attention window of {window} tokens, "
                "so that an added token may see no token"
            )


def _colbert(directory: Path, hidden_size: int) -> LateInteractionConfig:
    settings = _metadata(directory)
    fields = Fields(settings)
    fields.refuse_unless("similarity", "cosine")
    fields.refuse_unless("interaction", "colbert")
    skipped = _PUNCTUATION if fields.flag("mask_punctuation", True) else ()
    query_tokens = fields.integer("query_maxlen", 32)
    return LateInteractionConfig(
        (DenseConfig("", hidden_size, fields.integer("dim", 128), False, None),),
        query=TextSide(fields.text("query_token_id", "[unused0]"), max_tokens=query_tokens),
        document=TextSide(
            fields.text("doc_token_id", "[unused1]"),
            max_tokens=fields.integer("doc_maxlen", 220),
            skipped_tokens=skipped,
            skipped_texts=skipped,
        ),
        expansion=QueryExpansion(query_tokens, attended=fields.flag("attend_to_mask_tokens", False)),
    )


def _metadata(directory: Path) -> dict[str, Any]:
    path = file_in(directory, "artifact.metadata")
    if path is None:
        return {}
    try:
        settings = parse_json(path)
    except BadJson:
        settings = None
    if not isinstance(settings, dict):
        raise ConfigError("'artifact.metadata' is not a JSON object")
    return settings


def _multi_vector(directory: Path, hidden_size: int) -> LateInteractionConfig:
    modules = module_list(directory) or []
    kinds = [kind for kind, _ in modules]
    after = [kind for kind in kinds[1:] if kind != "MultiVectorMask"]
    middle = after[:-1] if after[-1:] == ["Normalize"] else after
    if kinds[:1] != ["Transformer"] or modules[0][1] or set(middle) - {"Dense"}:
        raise ConfigError(
            f"'modules.json': {', '.join(kinds)} is not supported for token vectors, only Transformer, Dense, "
            "MultiVectorMask, Normalize"
        )
    dense: list[DenseConfig] = []
    width = hidden_size
    for kind, folder in modules:
        if kind == "Dense":
            dense.append(token_dense(directory, folder, width))
            width = dense[-1].out_features
    settings = read_settings(directory, _ROOT_SETTINGS) or {}
    if settings.get("model_type") == "MultiVectorEncoder" and not _PYLATE_SETTINGS & settings.keys():
        return _sentence_transformers(directory, settings, modules, tuple(dense))
    return _pylate(settings, tuple(dense))


def _pylate(settings: Mapping[str, Any], dense: tuple[DenseConfig, ...]) -> LateInteractionConfig:
    fields = Fields(settings)
    fields.refuse_unless("similarity_fn_name", "MaxSim", "maxsim", "cosine")
    query_tokens = fields.integer("query_length", 32)
    expands = fields.flag("do_query_expansion", True)
    prompts = settings.get("prompts") or {}
    prompt = str(prompts.get(settings.get("default_prompt_name")) or "") if isinstance(prompts, dict) else ""
    skipped = _words(settings, "skiplist_words", _PUNCTUATION)
    return LateInteractionConfig(
        dense,
        query=TextSide(_marker(settings, "query_prefix", "[Q] "), prompt, query_tokens),
        document=TextSide(
            _marker(settings, "document_prefix", "[D] "), prompt, fields.integer("document_length", 180), skipped
        ),
        expansion=QueryExpansion(query_tokens, attended=fields.flag("attend_to_expansion_tokens", False))
        if expands
        else None,
    )


def _sentence_transformers(
    directory: Path, settings: Mapping[str, Any], modules: list[tuple[str, str]], dense: tuple[DenseConfig, ...]
) -> LateInteractionConfig:
    transformer = Fields(read_settings(directory, "sentence_bert_config.json") or {})
    root = Fields(settings)
    root.refuse_unless("similarity_fn_name", "maxsim", "meanmaxsim")
    prompts = settings.get("prompts") or {}
    if not isinstance(prompts, dict):
        raise ConfigError(f"'prompts' must be an object, not {short(prompts)}")
    mask: Mapping[str, Any] = {}
    for kind, folder in modules:
        if kind == "MultiVectorMask":
            mask = read_settings(directory, f"{folder}/config.json") or {}
        if kind == "Normalize":
            Fields(read_settings(directory, f"{folder}/config.json") or {}).refuse_unless(
                "module_input_name", "token_embeddings"
            )
    Fields(mask).refuse_unless("keep_only_token_ids", [])
    words = _words(mask, "skiplist_words", ())
    sides = _words(mask, "skiplist_tasks", ("document",))
    expansion = _expansion(transformer.raw("query_expansion"))
    longest = transformer.optional_integer("query_length")
    if expansion is not None:
        longest = expansion.length if expansion.cuts else longest and max(longest, expansion.length)
    return LateInteractionConfig(
        dense,
        query=TextSide("", str(prompts.get("query") or ""), longest, words if "query" in sides else ()),
        document=TextSide(
            "",
            str(prompts.get("document") or ""),
            transformer.optional_integer("document_length"),
            words if "document" in sides else (),
        ),
        expansion=expansion,
        normalize="Normalize" in [kind for kind, _ in modules],
        averages=settings.get("similarity_fn_name") == "meanmaxsim",
    )


def _expansion(value: Any) -> QueryExpansion | None:
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ConfigError(f"'query_expansion' must be an object, not {short(value)}")
    fields = Fields(value)
    fields.refuse_unless("strategy", "fixed", "min")
    return QueryExpansion(
        fields.integer("length"),
        fields.text("token", ""),
        fields.flag("attend", False),
        cuts=fields.text("strategy", "fixed") == "fixed",
    )


def _marker(settings: Mapping[str, Any], name: str, default: str) -> str:
    value = settings.get(name)
    value = default if value is None else value
    if not isinstance(value, str):
        raise ConfigError(f"{name!r} must be a string, not {short(value)}")
    return value


def _words(settings: Mapping[str, Any], name: str, default: tuple[str, ...]) -> tuple[str, ...]:
    value = settings.get(name)
    if value is None:
        return default
    if not isinstance(value, list) or not all(isinstance(word, str) for word in value):
        raise ConfigError(f"{name!r} must be a list of strings, not {short(value)}")
    return tuple(value)
