"""Rebuild, from the metadata of a GGUF file, the JSON files of the checkpoint that it was converted from.

The server reads a GGUF file as if it were a directory with these files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from weights.errors import GgufError
from weights.gguf.container import Gguf
from weights.gguf.metadata import Metadata, shortest

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Types of tokens in the metadata. Source: `gguf/constants.py` of https://github.com/ggml-org/llama.cpp."""
_ROLES = {
    "bos": "bos",
    "eos": "eos",
    "unk": "unknown",
    "sep": "seperator",
    "pad": "padding",
    "cls": "cls",
    "mask": "mask",
}
"""Roles of special tokens, and their names in metadata keys. `seperator` is misspelt in the format itself."""
_ENDS = frozenset(
    (
        "</s>",
        "<eos>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
    )
)
"""Control tokens that end a text in every model that has them. Metadata states the ids of only one or two of them."""
_BEGINS = frozenset(("llama-bpe", "llama3", "llama-v3", "tekken", "lfm2", "pixtral"))
"""Pre-tokenizers of models that put the start token before a text. Older files do not state this."""
_STRIPS_AFTER = "phi3"
"""Architecture whose tokenizer removes the white space after control tokens. The metadata does not state this."""
_KEEPS_AFTER = frozenset(("<unk>", "<s>", "<|endoftext|>"))
_POOLING = {1: "mean", 2: "cls", 3: "lasttoken"}
"""Pooling mode, in the names of sentence-transformers, by its code in the metadata."""
_POOLING_NONE = 0
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
"""Supported sampling defaults: their names in `generation_config.json`, and in metadata keys."""
_UNSUPPORTED_SAMPLING = {"sequence": None, "xtc_probability": 0.0, "mirostat": 0, "penalty_last_n": -1}
"""Sampling defaults that are not supported, each with the value at which it has no effect."""


def document(gguf: Gguf, name: str) -> dict[str, Any] | list[dict[str, Any]] | None:
    """The contents of a JSON file of the original checkpoint; None for a file that the metadata does not replace.

    name: path of the file inside the checkpoint, such as `tokenizer_config.json`. `config.json` is not built here, but
        by the model's family (`models.checkpoint.gguf_config`).
    Raises GgufError for invalid metadata.
    """
    build = _DOCUMENTS.get(name)
    return None if build is None else build(gguf)


def token_types(gguf: Gguf) -> list[int]:
    """Type of each token, such as `CONTROL`. In a file without types all tokens are `NORMAL`.

    Raises GgufError for a file without tokens, or with another number of types than tokens.
    """
    count = gguf.length("tokenizer.ggml.tokens")
    types = gguf.get("tokenizer.ggml.token_type") or [NORMAL] * count
    if count == 0 or len(types) != count:
        raise GgufError(f"{gguf.name!r} has {count} tokens and {len(types)} types of tokens")
    return list(types)


def role_ids(gguf: Gguf) -> dict[str, int]:
    """Token ids of the special tokens by role, such as `bos`. Raises GgufError for an id that is no token."""
    count, found = gguf.length("tokenizer.ggml.tokens"), {}
    for role, name in _ROLES.items():
        index = gguf.get(f"tokenizer.ggml.{name}_token_id")
        if index is None:
            continue
        if not isinstance(index, int) or not 0 <= index < count:
            raise GgufError(f"{gguf.name!r}: 'tokenizer.ggml.{name}_token_id' is not one of its {count} tokens")
        found[role] = index
    if gguf.get("tokenizer.ggml.model") == "bert" and "cls" not in found and "bos" in found:
        found["cls"] = found["bos"]
    return found


def _tokenizer_config(gguf: Gguf) -> dict[str, Any]:
    types, roles = token_types(gguf), role_ids(gguf)
    added = [index for index, kind in enumerate(types) if kind in (CONTROL, USER_DEFINED)]
    texts = gguf.texts("tokenizer.ggml.tokens", {*added, *roles.values()})
    strips = gguf.get("general.architecture") == _STRIPS_AFTER and gguf.get("tokenizer.ggml.model") == "llama"
    tokens = {
        str(index): {
            "content": texts[index],
            "special": types[index] == CONTROL,
            "normalized": False,
            "rstrip": strips and texts[index] not in _KEEPS_AFTER,
            "lstrip": texts[index] == "<mask>",
            "single_word": False,
        }
        for index in added
        if texts[index]
    }
    model, pre = gguf.get("tokenizer.ggml.model"), gguf.get("tokenizer.ggml.pre")
    settings: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "added_tokens_decoder": tokens,
        "add_bos_token": gguf.get("tokenizer.ggml.add_bos_token", model == "llama" or pre in _BEGINS),
        "add_eos_token": gguf.get("tokenizer.ggml.add_eos_token", model == "t5"),
        "add_prefix_space": gguf.get("tokenizer.ggml.add_space_prefix", model in ("llama", "t5")),
        **{f"{role}_token": texts[index] for role, index in roles.items()},
    }
    templates = _chat_templates(gguf)
    return {**settings, **({"chat_template": templates} if templates else {})}


def _chat_templates(gguf: Gguf) -> list[dict[str, str]]:
    """The chat templates as `tokenizer_config.json` lists them: first `default`, then the further named templates."""
    names = gguf.get("tokenizer.chat_templates") or []
    keys = {"default": "tokenizer.chat_template", **{name: f"tokenizer.chat_template.{name}" for name in names}}
    found = {name: gguf.get(key) for name, key in keys.items()}
    return [{"name": name, "template": text} for name, text in found.items() if isinstance(text, str)]


def _generation_config(gguf: Gguf) -> dict[str, Any]:
    """The contents of `generation_config.json`; empty for a file without tokens.

    `eos_token_id` has all tokens that end a text or a message of a chat.
    """
    if gguf.length("tokenizer.ggml.tokens") == 0:
        return {}
    types, roles = token_types(gguf), role_ids(gguf)
    control = [index for index, kind in enumerate(types) if kind == CONTROL]
    stated = [gguf.get(f"tokenizer.ggml.{name}_token_id") for name in ("eot", "eom")]
    ends = [roles.get("eos"), *(index for index in stated if isinstance(index, int) and index in control)]
    ends += [index for index, text in gguf.texts("tokenizer.ggml.tokens", control).items() if text in _ENDS]
    settings = {f"{role}_token_id": roles[role] for role in ("bos", "pad") if role in roles}
    eos = list(dict.fromkeys(index for index in ends if index is not None))
    return {**settings, **({"eos_token_id": eos} if eos else {}), **_sampling(gguf)}


def _sampling(gguf: Gguf) -> dict[str, Any]:
    """Sampling defaults, with the names of `generation_config.json`. Raises GgufError for an unsupported default.

    The metadata lacks `do_sample`. It is true if the file states a default other than the repetition penalty, unless
    the temperature is zero.
    """
    for name, neutral in _UNSUPPORTED_SAMPLING.items():
        value = gguf.get(f"general.sampling.{name}", neutral)
        if value != neutral:
            raise GgufError(f"{gguf.name!r}: the sampling default 'general.sampling.{name}' is not supported")
    stated = {ours: gguf.get(f"general.sampling.{theirs}") for ours, theirs in _SAMPLING.items()}
    found = {name: shortest(value) if isinstance(value, float) else value for name, value in stated.items()}
    found = {name: value for name, value in found.items() if value is not None}
    sampled = bool(found.keys() - {"repetition_penalty"})
    if found.get("temperature") == 0:
        del found["temperature"]
        sampled = False
    return {**found, **({"do_sample": sampled} if found else {})}


def _pooling_mode(gguf: Gguf) -> str | None:
    """Pooling mode of the model, in the names of sentence-transformers; None for a model without pooling.

    Raises GgufError for any other pooling type than mean, cls and last, for example the type of rerankers.
    """
    of = Metadata(gguf)
    kind = of.integer("pooling_type", _POOLING_NONE)
    if kind == _POOLING_NONE:
        return None
    if kind not in _POOLING:
        raise of.error("pooling_type", "is not supported, only mean, cls and last")
    return _POOLING[kind]


def _modules(gguf: Gguf) -> list[dict[str, Any]] | None:
    if _pooling_mode(gguf) is None:
        return None
    paths = {"Transformer": "", "Pooling": "1_Pooling", "Normalize": "2_Normalize"}
    return [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in paths.items()]


def _pooling(gguf: Gguf) -> dict[str, Any] | None:
    mode = _pooling_mode(gguf)
    return None if mode is None else {"pooling_mode": mode}


_DOCUMENTS: Mapping[str, Callable[[Gguf], dict[str, Any] | list[dict[str, Any]] | None]] = {
    "tokenizer_config.json": _tokenizer_config,
    "generation_config.json": _generation_config,
    "modules.json": _modules,
    "1_Pooling/config.json": _pooling,
}
