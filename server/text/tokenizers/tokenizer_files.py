"""Read the JSON files of a tokenizer: special tokens, added tokens, and settings.

`tokenizer_config.json` comes first. Where it has no table of added tokens, the older files `special_tokens_map.json`
and `added_tokens.json` are read. Defaults of the tokenizer's family fill the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import AddedToken

from server.text.tokenizers.bounds import MAX_ADDED_TOKENS, MAX_ENTRIES, MAX_IDS, check, check_entries
from server.text.tokens.tokenizer import TokenizerError
from weights.json_files import NotJson, read_json_file
from weights.sentence_modules import SETTINGS_FILES

_FLAGS = ("single_word", "lstrip", "rstrip", "normalized")
ROLES = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")

_MAX_LENGTH_LIMIT = 10_000_000
"""Larger values of `model_max_length` mean that there is no limit."""
_MAX_NAME = 60
"""Most characters of a class name that an error message shows."""
_KINDS = {
    "bert": "bert",
    "distilbert": "bert",
    "electra": "bert",
    "mpnet": "mpnet",
    "gpt2": "gpt2",
    "roberta": "roberta",
    "bart": "roberta",
    "longformer": "roberta",
    "led": "roberta",
    "t5": "t5",
    "mt5": "t5",
    "longt5": "t5",
    "switch_transformers": "t5",
    "marian": "marian",
    "llama": "llama",
    "mbart": "mbart",
    "mbart50": "mbart50",
    "nllb": "nllb",
    "m2m100": "m2m100",
    "m2m_100": "m2m100",
    "umt5": "t5",
    "byt5": "byt5",
    "pegasus": "pegasus",
    "blenderbot": "blenderbot",
    "blenderbot-small": "blenderbot-small",
    "blenderbotsmall": "blenderbot-small",
    "mistral": "llama",
    "nomic_bert": "bert",
    "xlmroberta": "xlm-roberta",
    "xlm-roberta": "xlm-roberta",
    "camembert": "camembert",
    "albert": "albert",
    "bigbird": "big_bird",
    "big_bird": "big_bird",
    "bigbird_pegasus": "pegasus",
    "pegasus_x": "pegasus",
    "deberta": "deberta",
    "debertav2": "deberta",
    "deberta-v2": "deberta",
    "squeezebert": "bert",
    "mobilebert": "bert",
    "convbert": "bert",
    "megatron-bert": "bert",
    "ernie": "bert",
    "data2vec-text": "roberta",
    "roberta-prelayernorm": "roberta",
    "xlm-roberta-xl": "xlm-roberta",
    "gpt_neo": "gpt2",
    "gptj": "gpt2",
    "codegen": "gpt2",
    "phi": "gpt2",
    "opt": "gpt2",
    "starcoder2": "gpt2",
    "whisper": "gpt2",
    "plbart": "plbart",
    "gemma": "gemma",
    "gemma2": "gemma",
    "gemma3": "gemma",
    "gemma3_text": "gemma",
    "gemma3n": "gemma",
    "gemma3n_text": "gemma",
    "wav2vec2ctc": "ctc",
    "wav2vec2": "ctc",
    "hubert": "ctc",
    "unispeech": "ctc",
    "unispeech-sat": "ctc",
    "biogpt": "biogpt",
    "fsmt": "fsmt",
    "clip": "clip",
    "clip_text_model": "clip",
}
"""Kind of a tokenizer, by the short name of its class, or by `model_type` if the files name no class.

The short name is in lower case, without `Tokenizer` and `Fast`.
"""
_WORD_SPLITTERS = {
    "roformer": "jieba",
    "bertjapanese": "MeCab, Sudachi or Juman++",
}
"""Tokenizers that are refused, because they first split a text into words with the named program.

Keys are short names of tokenizer classes.
"""
_ROBERTA_ROLES = {
    "bos": "<s>",
    "eos": "</s>",
    "sep": "</s>",
    "cls": "<s>",
    "unk": "<unk>",
    "pad": "<pad>",
    "mask": "<mask>",
}
_ALBERT_ROLES = {"bos": "[CLS]", "eos": "[SEP]", "sep": "[SEP]", "cls": "[CLS]", "mask": "[MASK]"}
_DEFAULT_ROLES: Mapping[str, Mapping[str, Any]] = {
    "bert": {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"},
    "gpt2": {"unk": "<|endoftext|>", "bos": "<|endoftext|>", "eos": "<|endoftext|>"},
    "roberta": _ROBERTA_ROLES,
    "xlm-roberta": _ROBERTA_ROLES,
    "camembert": _ROBERTA_ROLES | {"mask": {"content": "<mask>", "lstrip": True}},
    "mpnet": {**_ROBERTA_ROLES, "unk": "[UNK]"},
    "albert": {**_ALBERT_ROLES, "unk": "<unk>", "pad": "<pad>"},
    "big_bird": {**_ROBERTA_ROLES, "sep": "[SEP]", "cls": "[CLS]", "mask": {"content": "[MASK]", "lstrip": True}},
    "deberta": {**_ALBERT_ROLES, "unk": "[UNK]", "pad": "[PAD]"},
    "mbart": _ROBERTA_ROLES,
    "plbart": _ROBERTA_ROLES | {"mask": {"content": "<mask>", "lstrip": True}},
    "mbart50": _ROBERTA_ROLES,
    "nllb": _ROBERTA_ROLES,
    "m2m100": {"bos": "<s>", "eos": "</s>", "sep": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "blenderbot": _ROBERTA_ROLES,
    "t5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "blenderbot-small": {"bos": "__start__", "eos": "__end__", "unk": "__unk__", "pad": "__null__"},
    "byt5": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>"},
    "pegasus": {"eos": "</s>", "unk": "<unk>", "pad": "<pad>", "mask": "<mask_2>"},
    "marian": {"unk": "<unk>", "eos": "</s>", "pad": "<pad>"},
    "llama": {"unk": "<unk>", "bos": "<s>", "eos": "</s>"},
    "gemma": {"unk": "<unk>", "bos": "<bos>", "eos": "<eos>", "pad": "<pad>"},
    "clip": {"unk": "<|endoftext|>", "bos": "<|startoftext|>", "eos": "<|endoftext|>", "pad": "<|endoftext|>"},
    "fsmt": {"unk": "<unk>", "bos": "<s>", "sep": "</s>", "pad": "<pad>"},
    "biogpt": {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "sep": "</s>", "pad": "<pad>"},
    "ctc": {"unk": "<unk>", "bos": "<s>", "eos": "</s>", "pad": "<pad>"},
}


@dataclass(frozen=True)
class TokenizerFiles:
    """The settings of a checkpoint's tokenizer.

    kind: the family whose conventions apply (`bert`, `gpt2`, `roberta`, `t5`...); empty for an unknown family.
    class_name: class of the tokenizer that the files name, else their `model_type`; empty if the files have neither.
    roles: special tokens by role (`bos`, `eos`...). Includes defaults of the kind, which the vocabulary may lack.
    stated_roles: the roles whose token the files name.
    added: added tokens by id.
    extra_special: further special tokens, without a role.
    clean_up: whether decoding removes spaces before punctuation (`clean_up_tokenization_spaces`).
    max_length: maximum number of tokens of a text; None for no limit.
    config: contents of `tokenizer_config.json`.
    lower_case: whether texts are lower-cased first (a setting of sentence-transformers).
    """

    kind: str
    class_name: str
    roles: Mapping[str, AddedToken]
    stated_roles: frozenset[str]
    added: Mapping[int, AddedToken]
    extra_special: tuple[AddedToken, ...]
    clean_up: bool
    max_length: int | None
    config: Mapping[str, Any]
    lower_case: bool = False


def read_json(directory: Path, name: str) -> dict[str, Any]:
    """Read a JSON object from a file of a checkpoint. Empty if the file is missing.

    name: name of the file. Raises TokenizerError for a file that is damaged or holds no object.
    """
    try:
        content = read_json_file(directory, name)
    except NotJson as error:
        raise TokenizerError(f"{name} is damaged: {error.reason}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise TokenizerError(f"{name} is damaged: not a JSON object")
    return content


def read_vocabulary(directory: Path, name: str) -> dict[str, int]:
    """Read a table of tokens and their ids. Raises TokenizerError if it is missing, damaged or too large."""
    content = read_json(directory, name)
    if not content:
        raise TokenizerError(f"{name} is missing or empty")
    if not all(type(index) is int and index >= 0 for index in content.values()):
        raise TokenizerError(f"{name} is damaged: not a table of tokens and their ids")
    check(len(content), MAX_ENTRIES, "entries", name)
    check(max(content.values()), MAX_IDS, "as an id", name)
    check_entries(content, name)
    return content


def read_tokenizer_files(directory: Path) -> TokenizerFiles:
    """Read the JSON files of a tokenizer from a checkpoint directory.

    Raises TokenizerError for a damaged file, for too many added tokens, and for a tokenizer that needs another program.
    """
    config = read_json(directory, "tokenizer_config.json")
    class_name = _class_name(config, directory)
    short_name = class_name.removesuffix("Fast").removesuffix("Tokenizer").lower()
    if short_name in _WORD_SPLITTERS:
        raise TokenizerError(
            f"its tokenizer ({class_name}) splits texts into words with {_WORD_SPLITTERS[short_name]}, which is not "
            "supported"
        )
    kind = _KINDS.get(short_name, "")
    try:
        described = config.get("added_tokens_decoder") or {}
        check(len(described), MAX_ADDED_TOKENS, "added tokens", "tokenizer_config.json")
        added = {int(index): _added(token) for index, token in described.items()}
        named: dict[str, Any] = {**config}
        if "added_tokens_decoder" not in config:
            named |= read_json(directory, "special_tokens_map.json")
        by_content = {token.content: token for token in added.values()}
        roles = {role: _special(content, {}) for role, content in _DEFAULT_ROLES.get(kind, {}).items()}
        for role in ROLES:
            if f"{role}_token" in named:
                roles.pop(role, None)
                if named[f"{role}_token"] is not None:
                    roles[role] = _special(named[f"{role}_token"], by_content)
        extra: list[Any] = []
        for key in ("additional_special_tokens", "extra_special_tokens"):
            more = named.get(key) or []
            extra += list(more.values()) if isinstance(more, dict) else list(more)
        extra_special = tuple(_special(token, by_content) for token in extra)
        if "added_tokens_decoder" not in config:
            special = {token.content for token in (*roles.values(), *extra_special)}
            listed = read_json(directory, "added_tokens.json")
            check(len(listed), MAX_ADDED_TOKENS, "added tokens", "added_tokens.json")
            for content, index in listed.items():
                added[int(index)] = AddedToken(content, normalized=content not in special, special=content in special)
        check(max(added, default=0), MAX_IDS, "as an id of an added token", "tokenizer_config.json")
        if min(added, default=0) < 0:
            raise TokenizerError("tokenizer_config.json is damaged: an added token has a negative id")
        limit = config.get("model_max_length")
        return TokenizerFiles(
            kind=kind,
            class_name=class_name[:_MAX_NAME],
            roles=roles,
            stated_roles=frozenset(role for role in ROLES if named.get(f"{role}_token") is not None),
            added=dict(sorted(added.items())),
            extra_special=extra_special,
            clean_up=bool(config.get("clean_up_tokenization_spaces", False)),
            max_length=int(limit) if isinstance(limit, int | float) and 0 < limit <= _MAX_LENGTH_LIMIT else None,
            config=config,
            lower_case=_sentence_settings(directory).get("do_lower_case") is True,
        )
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        if isinstance(error, TokenizerError):
            raise
        raise TokenizerError("tokenizer_config.json is damaged: its special tokens cannot be read") from None


def _sentence_settings(directory: Path) -> dict[str, Any]:
    """Read the settings of a sentence-transformers checkpoint from the first settings file that exists; else empty."""
    found = (read_json(directory, name) for name in SETTINGS_FILES)
    return next((settings for settings in found if settings), {})


def _class_name(config: Mapping[str, Any], directory: Path) -> str:
    """The name of the tokenizer's class, else the checkpoint's `model_type`, else an empty string."""
    model = {} if config.get("tokenizer_class") else read_json(directory, "config.json")
    return str(config.get("tokenizer_class") or model.get("tokenizer_class") or model.get("model_type") or "")


def _added(token: Any) -> AddedToken:
    if not isinstance(token, dict):
        raise TypeError
    # The library prints the names of unknown settings to standard output.
    return AddedToken(**{key: token[key] for key in ("content", *_FLAGS, "special") if key in token})


def _special(token: Any, known: Mapping[str, AddedToken]) -> AddedToken:
    content = token["content"] if isinstance(token, dict) else token
    if not isinstance(content, str):
        raise TypeError
    if content in known:
        return known[content]
    if isinstance(token, dict):
        flags = {key: bool(token[key]) for key in _FLAGS if key in token}
        return AddedToken(content, special=True, **flags)
    return AddedToken(content, special=True, normalized=False)
