"""Resolve generation options and checkpoint defaults into the `GenerationParams` that the engine receives.

The value of every option comes from the first source that has one: the request, the checkpoint, the dialect (sampling
options only), the table in docs/decoding.md.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from server.errors import InvalidRequest
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.params import GenerationParams, SequenceTrie
from server.ipc.wire.sections import AnswerSection
from server.operations.encode import check_ids
from server.operations.generating.generation_options import (
    SAMPLER_NEUTRAL,
    GenerationOptions,
    SamplingDefaults,
    check_best_of,
    check_combinations,
)
from server.operations.served_model import ServedModel
from server.text.languages.languages import TranslationPrompt
from server.text.tokens.tokenizer import Tokenizer

DEFAULT_NEW_TOKENS = 256
LEAST_TOP_P = 1e-9
"""Replaces `top_p` 0. It keeps only the likeliest token, whose probability is at least 1 / vocabulary size."""

Value = TypeVar("Value")


@dataclass(frozen=True)
class ResolvedOptions:
    """Options with all defaults applied.

    params: parameters for all sequences of the request.
    max_new_tokens: the limit from the request or its default. The context may lower it.
    seed: seed of each prompt's first sequence.
    """

    params: GenerationParams
    max_new_tokens: int
    seed: int


def _first(*values: Value | None, default: Value) -> Value:
    return next((value for value in values if value is not None), default)


def resolve(
    options: GenerationOptions,
    model: ServedModel,
    language_prompt: TranslationPrompt,
    min_beams: int = 1,
    sections: Sequence[AnswerSection] = (),
    sequences: SequenceTrie | int | None = None,
) -> ResolvedOptions:
    """Check the options, and compute the parameters of all sequences of a request.

    language_prompt: the checkpoint's prompt for the target language.
    min_beams: minimum number of beams for the requested alternatives, if the request does not set `num_beams`.
    sections: sections of the answer; empty if no section has a grammar.
    sequences: the trie of `allowed_sequences`, or the id of a stored set; None if all sequences are allowed.
    Raises InvalidRequest, which names the option, for a contradiction or an id outside the vocabulary.
    """
    info, defaults = model.info, model.info.generation
    check_family(options, info)
    num_beams = num_beams_of(options, info, min_beams)
    check_combinations(options, num_beams)
    beams = num_beams > 1
    params = GenerationParams(
        min_new_tokens=_first(options.min_new_tokens, defaults.min_new_tokens, default=0),
        **_sampling(options, info, beams),
        repetition_penalty=_first(options.repetition_penalty, defaults.repetition_penalty, default=1.0),
        presence_penalty=options.presence_penalty,
        frequency_penalty=options.frequency_penalty,
        no_repeat_ngram_size=_first(options.no_repeat_ngram_size, defaults.no_repeat_ngram_size, default=0),
        encoder_no_repeat_ngram_size=_first(
            options.encoder_no_repeat_ngram_size, defaults.encoder_no_repeat_ngram_size, default=0
        ),
        renormalize_logits=defaults.renormalize_logits,
        bad_words_ids=[*defaults.bad_words_ids, *_bad_words(options.bad_words, model.tokenizer)],
        suppress_token_ids=[
            *defaults.suppress_token_ids,
            *check_ids(options.suppress_tokens, info, "suppress_tokens"),
        ],
        begin_suppress_token_ids=defaults.begin_suppress_token_ids,
        allowed_token_ids=check_ids(options.allowed_token_ids, info, "allowed_token_ids"),
        logit_bias=_logit_bias(options, info),
        end_token_ids=[] if options.ignore_eos else defaults.end_token_ids,
        stop_token_ids=check_ids(options.stop_token_ids, info, "stop_token_ids"),
        stop_texts=[stop.encode() for stop in options.stop] if beams else [],
        forced_bos_token_id=_forced_bos(options, model, language_prompt),
        forced_eos_token_id=defaults.forced_eos_token_id,
        num_beams=num_beams,
        num_return_sequences=options.num_return_sequences,
        length_penalty=_first(options.length_penalty, defaults.length_penalty, default=1.0) if beams else 1.0,
        early_stopping=_first(options.early_stopping, defaults.early_stopping, default=False) if beams else False,
        num_beam_groups=options.num_beam_groups,
        diversity_penalty=options.diversity_penalty,
        logprobs=options.logprobs or options.is_ranked,
        top_logprobs=options.top_logprobs,
        stream=options.stream,
        sections=list(sections),
        attention=options.return_attention,
        allowed_sequences=sequences if isinstance(sequences, SequenceTrie) else None,
        sequence_set=sequences if isinstance(sequences, int) else 0,
    )
    max_new_tokens = max_tokens_of(options, info)
    _check_minimum(options, max_new_tokens)
    _check_ends(model, params, "response_format" if options.text_format is not None else "tools")
    return ResolvedOptions(params, max_new_tokens, _first(options.seed, default=secrets.randbits(63)))


def _sampling(options: GenerationOptions, info: ModelInfo, beams: bool) -> dict[str, Any]:
    """The fields of `GenerationParams` for sampling; empty if tokens are not sampled.

    Each value comes from the request, otherwise from the checkpoint, otherwise from the dialect's defaults, which apply
    to decoder-only models.

    beams: whether beam search is used.
    """
    defaults = info.generation
    dialect = SamplingDefaults() if info.is_encoder_decoder else options.sampling_defaults
    found = {
        name: _first(getattr(options, name), getattr(defaults, name), default=getattr(dialect, name))
        for name in SAMPLER_NEUTRAL
    }
    found["top_p"] = max(found["top_p"], LEAST_TOP_P)
    by_default = options.do_sample is None and _first(defaults.do_sample, default=dialect.do_sample)
    if beams or found["temperature"] == 0 or not (_asks_to_sample(options) or by_default):
        return {}
    return {"do_sample": True, **found}


def num_beams_of(options: GenerationOptions, info: ModelInfo, min_beams: int = 1) -> int:
    """Number of beams of a request; 1 for greedy search and for sampling.

    min_beams: minimum number of beams for the requested alternatives, if the request does not set `num_beams`.
    """
    checkpoint_beams = 1 if _asks_to_sample(options) else _first(info.generation.num_beams, default=1)
    return _first(options.num_beams, default=max(checkpoint_beams, min_beams))


def _asks_to_sample(options: GenerationOptions) -> bool:
    return options.temperature != 0 and _first(options.do_sample, default=options.sampler(neutral=True) is not None)


def with_beam_answers(options: GenerationOptions, info: ModelInfo) -> GenerationOptions:
    """For beam search, convert the number of answers (`n`, `best_of`) to `num_return_sequences`.

    The `n` answers are the best hypotheses of one search, which has at least `best_of` beams unless the request sets
    `num_beams`. Options without beam search, or without `n` and `best_of`, are returned unchanged.
    Raises InvalidRequest for numbers that contradict each other.
    """
    if num_beams_of(options, info) == 1 or (options.n == 1 and options.best_of is None):
        return options
    check_best_of(options)
    if 1 not in (options.n, options.num_return_sequences) and options.n != options.num_return_sequences:
        raise InvalidRequest(
            f"`n` {options.n} and `num_return_sequences` {options.num_return_sequences} both are the number of answers "
            "of a beam search; send one of them",
            "n",
        )
    answers = max(options.n, options.num_return_sequences)
    hypotheses = _first(options.best_of, default=answers)
    name, asked = ("best_of", hypotheses) if options.best_of is not None else ("n", answers)
    if options.num_beams is not None and asked > options.num_beams:
        raise InvalidRequest(f"`{name}` {asked} is more than `num_beams` {options.num_beams}", name)
    if hypotheses < answers:
        raise InvalidRequest(
            f"`best_of` {hypotheses} is less than `num_return_sequences` {options.num_return_sequences}", "best_of"
        )
    beams = num_beams_of(options, info, hypotheses)
    return replace(options, n=1, best_of=None, num_return_sequences=answers, num_beams=beams)


def max_tokens_of(options: GenerationOptions, info: ModelInfo) -> int:
    """Maximum number of new tokens of one answer. The prompt and the context may limit them further."""
    default = info.context_tokens if options.fill_context else DEFAULT_NEW_TOKENS
    return _first(options.max_new_tokens, info.generation.max_new_tokens, default=default)


def check_family(options: GenerationOptions, info: ModelInfo) -> None:
    """Raise InvalidRequest for an option that needs the other kind of model: decoder-only, or encoder-decoder."""
    if info.is_encoder_decoder:
        for name in ("prompt_logprobs", "echo"):
            if getattr(options, name):
                raise InvalidRequest(
                    f"`{name}` requires a decoder-only model; `{info.name}` is an encoder-decoder", name
                )
        return
    for name in ("return_attention", "forced_bos_token", "decoder_prefix", "source_lang", "target_lang"):
        value = getattr(options, name)
        if value is not None and value is not False:
            raise InvalidRequest(f"`{name}` requires an encoder-decoder model; `{info.name}` is decoder-only", name)


def _logit_bias(options: GenerationOptions, info: ModelInfo) -> dict[int, float]:
    """Token id to bias, without biases of zero. Raises InvalidRequest for an id outside the vocabulary."""
    check_ids(list(options.logit_bias), info, "logit_bias")
    return {token: bias for token, bias in options.logit_bias.items() if bias}


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Token ids of each word, at the start of a text and after a space, which most vocabularies encode differently."""
    if not words:
        return []
    spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
    found = [encoding.ids for encoding in tokenizer.encode(spellings, add_special_tokens=False, offsets=False)]
    return [list(ids) for ids in dict.fromkeys(tuple(ids) for ids in found if ids)]


def _forced_bos(options: GenerationOptions, model: ServedModel, language_prompt: TranslationPrompt) -> int | None:
    token = options.forced_bos_token
    if token is None and language_prompt.forced_bos_id is not None:
        return language_prompt.forced_bos_id
    if token is None:
        return model.info.generation.forced_bos_token_id
    token_id = model.tokenizer.token_to_id(token) if isinstance(token, str) else token
    if token_id is None or not 0 <= token_id < model.info.vocab_size:
        raise InvalidRequest("`forced_bos_token` is not in the model's vocabulary", "forced_bos_token")
    return token_id


def _check_minimum(options: GenerationOptions, max_new_tokens: int) -> None:
    """Raise InvalidRequest if `min_new_tokens` of the request exceeds `max_new_tokens`.

    The checkpoint's minimum is not checked: the engine applies it as far as `max_new_tokens` allows.
    """
    if options.min_new_tokens is not None and options.min_new_tokens > max_new_tokens:
        raise InvalidRequest(
            f"`min_new_tokens` {options.min_new_tokens} is more than `max_new_tokens` {max_new_tokens}",
            "min_new_tokens",
        )


def _check_ends(model: ServedModel, params: GenerationParams, param: str) -> None:
    """Raise InvalidRequest for settings that cannot be combined with a grammar.

    These are beam search without an end token, and a forced first token that adds text.
    param: the request's field that asks for the grammar, for errors.
    """
    if not params.sections:
        return
    if params.num_beams > 1 and not (params.end_token_ids or params.stop_token_ids):
        raise InvalidRequest(f"`{param}` with beam search requires an end token; `{model.name}` has none", param)
    if params.forced_bos_token_id is not None and model.tokenizer.token_bytes.by_id[params.forced_bos_token_id]:
        raise InvalidRequest(
            f"`forced_bos_token` adds text to the answer, so it cannot be combined with `{param}`",
            "forced_bos_token",
        )
