"""From a client's fields and a checkpoint's defaults to `GenerationParams` and token ids. Nothing is left to default.

Precedence of every field: the request, then what the checkpoint says, then the table of API.md section 3.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from typing import TypeVar

from server.api.schemas import GenerationFields, refuse_contradictions
from server.api.state import Model
from server.errors import ContextLengthExceeded, InvalidRequest
from server.ipc.descriptions import ModelInfo
from server.ipc.messages import Generate
from server.ipc.params import GenerationParams
from server.text.languages import Plan, UnknownPair
from server.text.tokenizer import Encoding, Tokenizer

DEFAULT_NEW_TOKENS = 256
SEED_LIMIT = 1 << 64
MAX_ATTENTION_NUMBERS = 1 << 22

Value = TypeVar("Value")


def _first(*values: Value | None, default: Value) -> Value:
    return next((value for value in values if value is not None), default)


def resolve(
    body: GenerationFields, model: Model, plan: Plan, min_beams: int = 1, grammar: str = ""
) -> tuple[GenerationParams, int, int]:
    """The settings of all rows of a request; how many new tokens each may have; and the seed of its first row.

    plan: how the target language is asked for. min_beams: beams needed for the alternatives that were asked for, when
    the client did not say how many. grammar: what `response_format` comes to.
    Raises InvalidRequest that names the field for what contradicts itself or is not in the vocabulary.
    """
    info, defaults = model.info, model.info.generation
    _refuse_source_fields(body, info)
    asks_to_sample = body.temperature != 0 and _first(body.do_sample, default=body.sampler(neutral=True) is not None)
    checkpoint_beams = 1 if asks_to_sample else _first(defaults.num_beams, default=1)
    num_beams = _first(body.num_beams, default=max(checkpoint_beams, min_beams))
    refuse_contradictions(body, num_beams)
    by_default = body.do_sample is None and body.temperature != 0 and bool(defaults.do_sample)
    sample = num_beams == 1 and (asks_to_sample or by_default)
    seed = _first(body.seed, default=secrets.randbits(63))
    max_new_tokens = _first(body.max_new_tokens, defaults.max_new_tokens, default=DEFAULT_NEW_TOKENS)
    params = GenerationParams(
        min_new_tokens=_first(body.min_new_tokens, defaults.min_new_tokens, default=0),
        do_sample=sample,
        temperature=_first(body.temperature, defaults.temperature, default=1.0) if sample else 1.0,
        top_k=_first(body.top_k, defaults.top_k, default=0) if sample else 0,
        top_p=_first(body.top_p, defaults.top_p, default=1.0) if sample else 1.0,
        min_p=_first(body.min_p, defaults.min_p, default=0.0) if sample else 0.0,
        typical_p=_first(body.typical_p, defaults.typical_p, default=1.0) if sample else 1.0,
        repetition_penalty=_first(body.repetition_penalty, defaults.repetition_penalty, default=1.0),
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        no_repeat_ngram_size=_first(body.no_repeat_ngram_size, defaults.no_repeat_ngram_size, default=0),
        encoder_no_repeat_ngram_size=_first(
            body.encoder_no_repeat_ngram_size, defaults.encoder_no_repeat_ngram_size, default=0
        ),
        renormalize_logits=defaults.renormalize_logits,
        bad_words_ids=[*defaults.bad_words_ids, *_bad_words(body.bad_words or [], model.tokenizer)],
        suppress_token_ids=[
            *defaults.suppress_token_ids,
            *_in_vocabulary(body.suppress_tokens or [], info, "suppress_tokens"),
        ],
        begin_suppress_token_ids=defaults.begin_suppress_token_ids,
        allowed_token_ids=_in_vocabulary(body.allowed_token_ids or [], info, "allowed_token_ids"),
        logit_bias=_logit_bias(body, info),
        end_token_ids=[] if body.ignore_eos else defaults.end_token_ids,
        stop_token_ids=_in_vocabulary(body.stop_token_ids or [], info, "stop_token_ids"),
        stop_texts=[stop.encode() for stop in body.stop or ()] if num_beams > 1 else [],
        forced_bos_token_id=_forced_bos(body, model, plan),
        forced_eos_token_id=defaults.forced_eos_token_id,
        num_beams=num_beams,
        num_return_sequences=body.num_return_sequences or 1,
        length_penalty=_first(body.length_penalty, defaults.length_penalty, default=1.0) if num_beams > 1 else 1.0,
        early_stopping=_first(body.early_stopping, defaults.early_stopping, default=False) if num_beams > 1 else False,
        num_beam_groups=body.num_beam_groups or 1,
        diversity_penalty=body.diversity_penalty or 0.0,
        logprobs=bool(body.logprobs) or body.is_ranked,
        top_logprobs=body.top_logprobs or 0,
        stream=bool(body.stream),
        grammar=grammar,
        attention=bool(body.return_attention),
    )
    _check_minimum(body, max_new_tokens)
    _check_ends(body, model, params)
    return params, max_new_tokens, seed


def language_plan(body: GenerationFields, model: Model) -> Plan:
    """How to ask for the languages that the client named; nothing special when it named none."""
    if body.source_lang is None and body.target_lang is None:
        return Plan()
    _refuse_source_fields(body, model.info)
    try:
        return model.text.languages.match(body.source_lang, body.target_lang)
    except UnknownPair as error:
        raise InvalidRequest(str(error), "target_lang") from None


def _refuse_source_fields(body: GenerationFields, info: ModelInfo) -> None:
    if info.is_encoder_decoder:
        for name in ("prompt_logprobs", "echo"):
            if getattr(body, name):
                raise InvalidRequest(f"`{name}` is for decoders; `{info.name}` reads a source text", name)
        return
    if body.return_attention:
        raise InvalidRequest(
            f"`return_attention` is for encoder-decoder models; `{info.name}` is a decoder", "return_attention"
        )
    for name in ("forced_bos_token", "decoder_prefix", "source_lang", "target_lang"):
        if getattr(body, name) is not None:
            raise InvalidRequest(f"`{name}` is for encoder-decoder models; `{info.name}` is a decoder", name)


def _in_vocabulary(ids: Sequence[int], info: ModelInfo, param: str) -> list[int]:
    if ids and max(ids) >= info.vocab_size:
        raise InvalidRequest(f"`{param}` holds an id outside of the vocabulary of {info.vocab_size} tokens", param)
    return list(ids)


def _logit_bias(body: GenerationFields, info: ModelInfo) -> dict[int, float]:
    """By token id; biases of zero change nothing and are left out."""
    biases = {int(token): bias for token, bias in (body.logit_bias or {}).items()}
    _in_vocabulary(list(biases), info, "logit_bias")
    return {token: bias for token, bias in biases.items() if bias}


def _bad_words(words: Sequence[str], tokenizer: Tokenizer) -> list[list[int]]:
    """Each word as it stands at the start of a text and after a space, which most vocabularies spell differently."""
    if not words:
        return []
    spellings = [spelling for word in words for spelling in (word, " " + word.lstrip())]
    found = [encoding.ids for encoding in tokenizer.encode(spellings, add_special_tokens=False, offsets=False)]
    return [list(ids) for ids in dict.fromkeys(tuple(ids) for ids in found if ids)]


def _forced_bos(body: GenerationFields, model: Model, plan: Plan) -> int | None:
    token = body.forced_bos_token
    if token is None and plan.forced_bos_id is not None:
        return plan.forced_bos_id
    if token is None:
        return model.info.generation.forced_bos_token_id
    token_id = model.tokenizer.token_to_id(token) if isinstance(token, str) else token
    if token_id is None or not 0 <= token_id < model.info.vocab_size:
        raise InvalidRequest("`forced_bos_token` is not in the model's vocabulary", "forced_bos_token")
    return token_id


def _check_minimum(body: GenerationFields, max_new_tokens: int) -> None:
    """Raises InvalidRequest when a client asks for more tokens at least than at most."""
    if body.min_new_tokens is not None and body.min_new_tokens > max_new_tokens:
        raise InvalidRequest(
            f"`min_new_tokens` {body.min_new_tokens} is more than `max_new_tokens` {max_new_tokens}",
            "min_new_tokens",
        )


def _check_ends(body: GenerationFields, model: Model, params: GenerationParams) -> None:
    """Raises InvalidRequest for what would end a formatted text too late, or begin it with something else."""
    if not params.grammar:
        return
    if params.num_beams > 1 and not (params.end_token_ids or params.stop_token_ids):
        raise InvalidRequest(
            f"`response_format` with beam search needs a token to end with; `{model.name}` has none", "response_format"
        )
    if params.forced_bos_token_id is not None and model.tokenizer.token_bytes.by_id[params.forced_bos_token_id]:
        raise InvalidRequest("`forced_bos_token` is text, which does not go with `response_format`", "forced_bos_token")


def bare_start(model: Model, plan: Plan) -> list[int]:
    """What the decoder of an encoder-decoder starts from; empty for a decoder-only model.

    Raises InvalidRequest where that is a language (mBART) and none was named.
    """
    if not model.info.is_encoder_decoder:
        return []
    start = list(plan.decoder_start_ids or model.info.generation.decoder_start_token_ids)
    if not start:
        raise InvalidRequest(
            f"`{model.name}` starts its answer from a language; `target_lang` must be given", "target_lang"
        )
    return start


def limit_attention(message: Generate) -> None:
    """Raises InvalidRequest for matrices that together may be too large to send."""
    each = [len(message.prompts[row.prompt]) * row.max_new_tokens for row in message.rows]
    numbers = sum(each) * message.params.num_return_sequences
    if message.params.attention and numbers > MAX_ATTENTION_NUMBERS:
        raise InvalidRequest(
            f"`return_attention` may bring {numbers} numbers, source tokens by `max_new_tokens` of every answer; the "
            f"limit is {MAX_ATTENTION_NUMBERS}",
            "return_attention",
        )


def decoder_start(body: GenerationFields, model: Model, plan: Plan) -> list[int]:
    """The same with what the client wants the answer to begin with."""
    start = bare_start(model, plan)
    if body.decoder_prefix:
        start += model.tokenizer.encode([body.decoder_prefix], add_special_tokens=False, offsets=False)[0].ids
    return start


def room(info: ModelInfo, prompt: Sequence[int], start: Sequence[int], param: str) -> int:
    """New tokens that the context has room for. Raises ContextLengthExceeded when the prompt leaves none."""
    if not prompt:
        raise InvalidRequest(f"`{param}` holds a text without any token", param)
    check_ids(prompt, info, param)
    if info.is_encoder_decoder:
        if info.source_tokens and len(prompt) > info.source_tokens:
            raise ContextLengthExceeded(
                f"`{param}` has {len(prompt)} tokens; the model `{info.name}` reads at most {info.source_tokens}", param
            )
        used, at_fault = len(start), "decoder_prefix"
    else:
        used, at_fault = len(prompt), param
    if used >= info.context_tokens:
        raise ContextLengthExceeded(
            f"`{at_fault}` has {used} tokens; the context of `{info.name}` is {info.context_tokens} with at least one "
            "new token",
            at_fault,
        )
    return info.context_tokens - used


def check_ids(ids: Sequence[int], info: ModelInfo, param: str) -> list[int]:
    """The ids. Raises InvalidRequest for one that the model has no embedding for, whoever made it."""
    return _in_vocabulary(ids, info, param)


def with_languages(encoding: Encoding, plan: Plan) -> Encoding:
    """A source text between the token ids that ask for its translation."""
    leading, trailing = plan.leading_source_ids, plan.trailing_source_ids or ()
    return Encoding(
        ids=[*leading, *encoding.ids, *trailing],
        type_ids=[*(0 for _ in leading), *encoding.type_ids, *(0 for _ in trailing)],
        special=[*(True for _ in leading), *encoding.special, *(True for _ in trailing)],
        offsets=[],
        tokens=[],
    )


def shorten(encoding: Encoding, limit: int, side: str) -> Encoding:
    """At most `limit` tokens: text is dropped on one side (`left` or `right`), special tokens around it stay.

    Of a pair, the longer text loses tokens first.
    """
    excess = len(encoding.ids) - limit
    if excess <= 0:
        return encoding
    runs = text_runs(encoding)
    kept = {start: list(range(start, end)) for start, end in runs}
    while excess > 0 and any(kept.values()):
        longest = max(kept.values(), key=len)
        others = max((len(run) for run in kept.values() if run is not longest), default=0)
        count = min(excess, max(1, len(longest) - others), len(longest))
        del longest[slice(0, count) if side == "left" else slice(len(longest) - count, None)]
        excess -= count
    text = {index for run in kept.values() for index in run}
    keep = [index for index in range(len(encoding.ids)) if encoding.special[index] or index in text][:limit]
    return Encoding(
        ids=[encoding.ids[index] for index in keep],
        type_ids=[encoding.type_ids[index] for index in keep],
        special=[encoding.special[index] for index in keep],
        offsets=[encoding.offsets[index] for index in keep] if encoding.offsets else [],
        tokens=[encoding.tokens[index] for index in keep] if encoding.tokens else [],
        words=[encoding.words[index] for index in keep] if encoding.words else [],
        sides=[encoding.sides[index] for index in keep] if encoding.sides else [],
    )


def text_runs(encoding: Encoding) -> list[tuple[int, int]]:
    """Where tokens of the text itself stand: (start, end) of each run between special tokens."""
    runs = []
    start: int | None = None
    for index, special in enumerate([*encoding.special, True]):
        if special and start is not None:
            runs.append((start, index))
            start = None
        elif not special and start is None:
            start = index
    return runs
