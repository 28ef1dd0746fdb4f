"""What a checkpoint says of its own decoding. No torch here.

`generation_config.json` where there is one, else the generation fields that older checkpoints keep in `config.json`;
special tokens that the first does not name come from the second, and what neither names from the family.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from models.config import ConfigError


@dataclass(frozen=True)
class GenerationDefaults:
    """Special tokens, and defaults for what a client leaves out. None or empty: the checkpoint does not say.

    end_token_ids: any of them ends the text. decoder_start_token_ids: what an encoder-decoder's decoder starts from.
    min_new_tokens, max_new_tokens: without the start tokens. begin_suppress_token_ids: never the first new token.
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


_TOKENS = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id")
_PLAIN = (
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
_NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "compression_ratio_threshold": (),
    "condition_on_prev_tokens": (False,),
    "constraints": (),
    "diversity_penalty": (0.0,),
    "encoder_repetition_penalty": (1.0,),
    "exponential_decay_length_penalty": (),
    "force_words_ids": ((),),
    "guidance_scale": (1.0,),
    "logprob_threshold": (),
    "no_speech_threshold": (),
    "num_beam_groups": (1,),
    "penalty_alpha": (0.0,),
    "sequence_bias": ((),),
    "stop_strings": ((),),
    "epsilon_cutoff": (0.0,),
    "eta_cutoff": (0.0,),
}
"""Settings that change the answer and are not supported, with the values (besides null) that change nothing."""


def generation_defaults(
    generation_config: Mapping[str, Any] | None,
    config: Mapping[str, Any],
    family: GenerationDefaults,
    vocab_size: int,
    is_encoder_decoder: bool,
) -> GenerationDefaults:
    """Read a checkpoint's defaults.

    generation_config: `generation_config.json`, or None where the checkpoint has none. config: `config.json`.
    family: what holds where neither says. vocab_size: of the logits; ids beyond it can never be made, so that those
    that end, are suppressed or pad are left out, and those that must be made are refused.

    Raises ConfigError for a setting that is not supported, of the wrong type, or outside the vocabulary.
    """
    source = dict(config if generation_config is None else generation_config)
    for name in _TOKENS:
        if source.get(name) is None and config.get(name) is not None:
            source[name] = config[name]
    for name, neutral in _NEUTRAL.items():
        value = source.get(name)
        if value is not None and (tuple(value) if isinstance(value, list) else value) not in neutral:
            raise ConfigError(f"generation setting {name!r} is not supported")

    found: dict[str, Any] = {name: source[name] for name in _PLAIN if source.get(name) is not None}
    found["end_token_ids"] = _token_ids(source.get("eos_token_id"), "eos_token_id")
    found["decoder_start_token_ids"] = _token_ids(source.get("decoder_start_token_id"), "decoder_start_token_id")
    found["suppress_token_ids"] = _token_ids(source.get("suppress_tokens"), "suppress_tokens")
    found["begin_suppress_token_ids"] = _token_ids(source.get("begin_suppress_tokens"), "begin_suppress_tokens")
    words = source.get("bad_words_ids") or []
    if not isinstance(words, list):
        raise ConfigError("generation setting 'bad_words_ids' must be lists of token ids")
    found["bad_words_ids"] = tuple(_token_ids(ids, "bad_words_ids") for ids in words)
    forced_eos = _token_ids(source.get("forced_eos_token_id"), "forced_eos_token_id")
    if len(forced_eos) > 1:
        raise ConfigError(f"generation setting 'forced_eos_token_id' has {len(forced_eos)} tokens; one is supported")
    found["forced_eos_token_id"] = forced_eos[0] if forced_eos else None
    if is_encoder_decoder:
        # A decoder-only length counts the prompt, which is not known here; an encoder-decoder's counts its start token.
        for new, whole in (("max_new_tokens", "max_length"), ("min_new_tokens", "min_length")):
            if new not in found and isinstance(source.get(whole), int):
                found[new] = max(source[whole] - 1, 0)
    _check_types(found)
    said = {name: value for name, value in found.items() if value is not None and value != ()}
    return _within(replace(family, **said), vocab_size)


def _within(defaults: GenerationDefaults, vocab_size: int) -> GenerationDefaults:
    needed = (*defaults.decoder_start_token_ids, defaults.forced_bos_token_id, defaults.forced_eos_token_id)
    for token in needed:
        if token is not None and not 0 <= token < vocab_size:
            raise ConfigError(f"generation settings need token {token}, outside the vocabulary of {vocab_size}")

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
        raise ConfigError(f"generation setting {name!r} must be token ids")
    return ids


def _check_types(found: Mapping[str, Any]) -> None:
    for entry in fields(GenerationDefaults):
        value, kind = found.get(entry.name), str(entry.type)
        if value is None or kind.startswith("tuple"):
            continue
        if kind.startswith("bool"):
            right = isinstance(value, bool) or ("Literal" in kind and value == "never")
        else:
            right = isinstance(value, int | float if kind.startswith("float") else int) and not isinstance(value, bool)
        if not right:
            raise ConfigError(f"generation setting {entry.name!r} has a value of the wrong type")
