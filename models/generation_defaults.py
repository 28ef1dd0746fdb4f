"""Generation settings of a checkpoint: special tokens, and defaults for fields that a request leaves out.

Follows transformers. The settings come from `generation_config.json` if it exists, else from `config.json`, where older
checkpoints keep them. Special token ids that `generation_config.json` leaves out are taken from `config.json`.
A setting that neither file has stays unset: families add no defaults. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from models.config import ConfigError
from models.config.errors import short


@dataclass(frozen=True)
class GenerationDefaults:
    """Generation settings of one checkpoint. None or an empty tuple means that the checkpoint does not set a field.

    end_token_ids: tokens that end a text.
    decoder_start_token_ids: the first decoder inputs of an encoder-decoder.
    begin_suppress_token_ids: tokens that are never chosen as the first new token.
    max_new_tokens, min_new_tokens: limits for the number of new tokens, not counting start tokens.
    The other fields have the names and meanings of transformers' `GenerationConfig`.
    """

    bos_token_id: int | None = None
    end_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None
    decoder_start_token_ids: tuple[int, ...] = ()
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_token_ids: tuple[int, ...] = ()
    begin_suppress_token_ids: tuple[int, ...] = ()
    bad_words_ids: tuple[tuple[int, ...], ...] = ()
    renormalize_logits: bool = False
    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    do_sample: bool | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    typical_p: float | None = None
    repetition_penalty: float | None = None
    no_repeat_ngram_size: int | None = None
    encoder_no_repeat_ngram_size: int | None = None
    num_beams: int | None = None
    length_penalty: float | None = None
    early_stopping: bool | Literal["never"] | None = None


_RANGES: Mapping[str, tuple[float, float]] = {
    "max_new_tokens": (0, (1 << 31) - 1),
    "min_new_tokens": (0, (1 << 31) - 1),
    "temperature": (0, 100),
    "top_k": (0, 1 << 20),
    "top_p": (0, 1),
    "min_p": (0, 1),
    "typical_p": (0, 1),
    "repetition_penalty": (1e-3, 100),
    "no_repeat_ngram_size": (0, 1 << 20),
    "encoder_no_repeat_ngram_size": (0, 1 << 20),
    "num_beams": (1, 16),
    "length_penalty": (-100, 100),
}
"""Smallest and largest allowed value of each numeric setting. A range is the range that requests allow, extended to 0
where transformers allows 0. Exceptions: requests allow fewer new tokens, more beams, and a `repetition_penalty` below
1e-3."""
_MAX_TOKENS, _MAX_WORDS = 1 << 14, 1 << 10
"""Largest allowed number of token ids in a setting, and of entries of `bad_words_ids`."""
_SPECIAL_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_SAME_NAME = (
    "bos_token_id",
    "pad_token_id",
    "forced_bos_token_id",
    "renormalize_logits",
    "max_new_tokens",
    "min_new_tokens",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "typical_p",
    "repetition_penalty",
    "no_repeat_ngram_size",
    "encoder_no_repeat_ngram_size",
    "num_beams",
    "length_penalty",
    "early_stopping",
)
_TOKEN_LISTS: Mapping[str, str] = {
    "end_token_ids": "eos_token_id",
    "decoder_start_token_ids": "decoder_start_token_id",
    "suppress_token_ids": "suppress_tokens",
    "begin_suppress_token_ids": "begin_suppress_tokens",
}
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "constraints": (),
    "diversity_penalty": (0.0,),
    "dola_layers": (),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ((),),
    "guidance_scale": (1.0,),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "sequence_bias": ((),),
    "stop_strings": ((),),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
    "token_healing": (False,),
    "top_h": (),
    "watermarking_config": (),
}
"""Unsupported settings that can change the generated text, each with the values that have no effect. A null value has
no effect either."""


def generation_defaults(
    generation_config: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    vocab_size: int,
    decoder_start: Literal["token", "language"] | None,
) -> GenerationDefaults:
    """Read the generation settings of a checkpoint.

    generation_config: contents of `generation_config.json`, or None if the checkpoint has no such file.
    config: contents of `config.json`.
    vocab_size: number of logits. Token ids outside the vocabulary are dropped, unless they must be generated.
    decoder_start: for an encoder-decoder, whether it starts with a fixed token or with the token of a language; None
        for other models.
    Raises ConfigError for a setting that is unsupported, has an invalid value, or needs a token outside the vocabulary.
    Also raises it if the decoder needs a start token and the files name none.
    """
    source = _settings(generation_config, config)
    for name, neutral in _NEUTRAL.items():
        value = source.get(name)
        if value is not None and (tuple(value) if isinstance(value, list) else value) not in neutral:
            raise ConfigError(f"generation setting {name!r} is not supported")

    found: dict[str, Any] = {name: source[name] for name in _SAME_NAME if source.get(name) is not None}
    for ours, theirs in _TOKEN_LISTS.items():
        found[ours] = _token_ids(source.get(theirs), theirs)
    words = source.get("bad_words_ids") or []
    if not isinstance(words, list):
        raise ConfigError("generation setting 'bad_words_ids' must be a list of lists of token ids")
    if len(words) > _MAX_WORDS:
        raise ConfigError(f"generation setting 'bad_words_ids' has {len(words):,} words; the limit is {_MAX_WORDS:,}")
    found["bad_words_ids"] = tuple(_token_ids(ids, "bad_words_ids") for ids in words)
    forced_eos = _token_ids(source.get("forced_eos_token_id"), "forced_eos_token_id")
    if len(forced_eos) > 1:
        raise ConfigError(f"generation setting 'forced_eos_token_id' has {len(forced_eos)} tokens; one is supported")
    found["forced_eos_token_id"] = forced_eos[0] if forced_eos else None
    if decoder_start is not None:
        # The max_length of a decoder counts the prompt, whose length depends on the request. The max_length of an
        # encoder-decoder counts its start token.
        for new, whole in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
            if new not in found and isinstance(source.get(whole), int):
                found[new] = max(source[whole] - 1, 0)
    if decoder_start == "token" and not found["decoder_start_token_ids"]:
        found["decoder_start_token_ids"] = _token_ids(source.get("bos_token_id"), "bos_token_id")
        if not found["decoder_start_token_ids"]:
            raise ConfigError(
                "the decoder has no start token: set 'decoder_start_token_id' or 'bos_token_id' in config.json"
            )
    _check_types(found)
    return _within(GenerationDefaults(**found), vocab_size)


def _settings(generation_config: Mapping[str, Any] | None, config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of both files in one dictionary. A null is the same as an absent setting.

    A setting that `config.json` lacks at its top level is read from its `text_config`.
    """
    text_config = config.get("text_config")
    layers = [text_config if isinstance(text_config, dict) else {}, config]
    merged = {name: value for layer in layers for name, value in layer.items() if value is not None}
    if generation_config is not None:
        special_tokens = {name: merged[name] for name in _SPECIAL_TOKENS if name in merged}
        return {**special_tokens, **{name: value for name, value in generation_config.items() if value is not None}}
    if merged.get("force_bos_token_to_be_generated"):
        # The first BART checkpoints have this setting in place of `forced_bos_token_id`.
        merged["forced_bos_token_id"] = merged.get("bos_token_id")
    return merged


def _within(defaults: GenerationDefaults, vocab_size: int) -> GenerationDefaults:
    """Drop token ids outside the vocabulary. Raises ConfigError if such a token must be generated."""
    needed = (*defaults.decoder_start_token_ids, defaults.forced_bos_token_id, defaults.forced_eos_token_id)
    for token in needed:
        if token is not None and not 0 <= token < vocab_size:
            raise ConfigError(f"generation settings need token {token}, but the vocabulary has {vocab_size} tokens")

    def single(token: int | None) -> int | None:
        return token if token is not None and 0 <= token < vocab_size else None

    def several(tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(token for token in tokens if token < vocab_size)

    return replace(
        defaults,
        bos_token_id=single(defaults.bos_token_id),
        pad_token_id=single(defaults.pad_token_id),
        end_token_ids=several(defaults.end_token_ids),
        suppress_token_ids=several(defaults.suppress_token_ids),
        begin_suppress_token_ids=several(defaults.begin_suppress_token_ids),
        bad_words_ids=tuple(word for word in defaults.bad_words_ids if word and several(word) == word),
    )


def _token_ids(value: Any, name: str) -> tuple[int, ...]:
    ids = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(token, int) and not isinstance(token, bool) and token >= 0 for token in ids):
        raise ConfigError(f"generation setting {name!r} must be a token id or a list of token ids")
    if len(ids) > _MAX_TOKENS:
        raise ConfigError(f"generation setting {name!r} has {len(ids):,} token ids; the limit is {_MAX_TOKENS:,}")
    return ids


def _check_types(found: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value that does not have the type of its field, or is outside of its range."""
    for entry in fields(GenerationDefaults):
        value, kind = found.get(entry.name), str(entry.type)
        if value is None or kind.startswith("tuple"):
            continue
        if kind.startswith("bool"):
            right = isinstance(value, bool) or ("Literal" in kind and value == "never")
        else:
            right = isinstance(value, int | float if kind.startswith("float") else int) and not isinstance(value, bool)
        if not right:
            raise ConfigError(
                f"generation setting {entry.name!r} must be {kind.replace(' | None', '')}, not {short(value)}"
            )
        if entry.name in _RANGES:
            least, most = _RANGES[entry.name]
            if not least <= value <= most:
                raise ConfigError(
                    f"generation setting {entry.name!r} must be {least:g} to {most:,g}, not {short(value)}"
                )
