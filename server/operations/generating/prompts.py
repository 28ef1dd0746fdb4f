"""Compute token ids of prompts, source texts and decoder starts, and the number of new tokens that fit the context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from server.errors import ContextLengthExceeded, InvalidRequest, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.generate_messages import Generate
from server.operations.encode import check_ids
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import check_family
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.languages.languages import TranslationPrompt, UnknownPair
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import TruncationSide, truncate

MAX_ATTENTION_NUMBERS = 1 << 22
"""Maximum number of values in all attention matrices of one request: 16 MiB of float32."""


def task_prompt(options: GenerationOptions, model: ServedModel, task: str | None = None) -> TranslationPrompt:
    """The prefix and tokens that ask the checkpoint for the languages or the task of a request; empty without both.

    task: name of a task in the checkpoint's `task_specific_params`. Used if the request names no language.
    Raises InvalidRequest for languages that the model does not translate.
    """
    if options.source_lang is None and options.target_lang is None:
        settings = model.text.tasks.get(task or "")
        return TranslationPrompt() if settings is None else TranslationPrompt(settings.prefix, task=task)
    check_family(options, model.info)
    try:
        return model.text.languages.match(options.source_lang, options.target_lang)
    except UnknownPair as error:
        raise InvalidRequest(str(error), error.param) from None


class SourceTokens(NamedTuple):
    """The tokens of a prompt or source text, with its prefix and language tokens.

    ids: token ids.
    spans: for each token, its (start, end) in the text, in characters; (0, 0) for special tokens, language tokens and
        tokens of the prefix. Empty if they were not requested.
    is_cut: the text was too long and lost tokens.
    """

    ids: list[int]
    spans: list[tuple[int, int]]
    is_cut: bool


async def encode_texts(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    texts: Sequence[str],
    language_prompt: TranslationPrompt,
    options: GenerationOptions,
    param: str,
    with_spans: bool = False,
) -> list[SourceTokens]:
    """Tokenize texts with the prefix and language tokens of `language_prompt`.

    Each text is shortened to `options.truncate` tokens, if that is set. param: the request's field, for errors.
    with_spans: whether the characters of each token are needed.
    """
    skipped = len(language_prompt.prefix)

    def read(encoding: Encoding) -> SourceTokens:
        whole = with_language_tokens(encoding, language_prompt)
        kept = whole if options.truncate is None else truncate(whole, options.truncate, truncation_side(model))
        spans = [
            (0, 0) if special else (max(0, start - skipped), max(0, end - skipped))
            for (start, end), special in zip(kept.offsets, kept.special, strict=bool(kept.offsets))
        ]
        return SourceTokens(kept.ids, spans, len(kept.ids) < len(whole.ids))

    return await runtime.encode_with(
        model.tokenizer,
        [language_prompt.prefix + text for text in texts],
        read,
        param=param,
        add_special_tokens=language_prompt.trailing_source_ids is None,
        offsets=with_spans,
        call=call,
    )


def truncation_side(model: ServedModel) -> TruncationSide:
    """The side on which a long prompt loses tokens: a source text its end, a decoder's prompt its beginning.

    The end of a decoder's prompt is kept, because the answer continues it.
    """
    return "right" if model.info.is_encoder_decoder else "left"


def with_language_tokens(encoding: Encoding, language_prompt: TranslationPrompt) -> Encoding:
    """Add language tokens before and after the tokens of a source text. Their offsets are (0, 0)."""
    leading, trailing = language_prompt.leading_source_ids, language_prompt.trailing_source_ids or ()
    before, after = [(0, 0)] * len(leading), [(0, 0)] * len(trailing)
    return Encoding(
        ids=[*leading, *encoding.ids, *trailing],
        type_ids=[*(0 for _ in leading), *encoding.type_ids, *(0 for _ in trailing)],
        special=[*(True for _ in leading), *encoding.special, *(True for _ in trailing)],
        offsets=[*before, *encoding.offsets, *after] if encoding.offsets else [],
    )


def decoder_start(model: ServedModel, language_prompt: TranslationPrompt) -> list[int]:
    """Start tokens of the decoder in an encoder-decoder model; empty for a decoder-only model.

    Raises InvalidRequest if the decoder must start with a language token (mBART) and the request names no target
    language.
    """
    if not model.info.is_encoder_decoder:
        return []
    start = list(language_prompt.decoder_start_ids or model.info.generation.decoder_start_token_ids)
    if not start:
        raise InvalidRequest(
            f"`target_lang` is required: the decoder of `{model.name}` starts with a language token", "target_lang"
        )
    return start


def decoder_prefix(options: GenerationOptions, model: ServedModel) -> list[int]:
    """Token ids of the text with which the answer must begin; empty if the request has no `decoder_prefix`."""
    if not options.decoder_prefix:
        return []
    return model.tokenizer.encode([options.decoder_prefix], add_special_tokens=False, offsets=False)[0].ids


def max_new_tokens(info: ModelInfo, prompt: Sequence[int], start: Sequence[int], param: str) -> int:
    """Number of new tokens that fit the context.

    prompt: token ids of the prompt or source text.
    start: token ids with which an encoder-decoder's decoder starts.
    param: the request's field with the prompt, for errors.
    Raises InvalidRequest for an empty prompt or an id outside the vocabulary, and ContextLengthExceeded if the prompt
    is too long or leaves no room for a token.
    """
    if not prompt:
        raise InvalidRequest(f"`{param}` contains a text without any token", param)
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
            f"`{at_fault}` has {used} tokens and leaves no room for a new token; the context of `{info.name}` is "
            f"{info.context_tokens} tokens",
            at_fault,
            (used, info.context_tokens),
        )
    return info.context_tokens - used


def tokens_left_in_pool(info: ModelInfo, prompt: Sequence[int], num_beams: int, param: str) -> int:
    """Number of new tokens per sequence for which an empty KV pool has room.

    prompt: token ids before the new tokens in the decoder. param: the request's field with the prompt, for errors.
    Raises ContextLengthExceeded for a prompt that leaves no room, so that clients shorten their conversation, and
    RequestTooLarge for more beams than the pool has blocks, which no shorter prompt can help.
    """
    if info.block_size and num_beams > info.kv_blocks["self"]:
        raise RequestTooLarge(
            f"{num_beams} beams need at least {num_beams} KV blocks, but `{info.name}` has {info.kv_blocks['self']}. "
            "Lower `num_beams`, or start the server with a larger --kv-cache-memory.",
            "num_beams",
        )
    pool_tokens = info.kv_blocks["self"] // num_beams * info.block_size if info.block_size else info.context_tokens
    if len(prompt) >= pool_tokens:
        beams = f" with {num_beams} beams" if num_beams > 1 else ""
        raise ContextLengthExceeded(
            f"`{param}` has {len(prompt)} tokens and leaves no room for a new token; the KV cache of `{info.name}` "
            f"holds {pool_tokens} tokens{beams} (--kv-cache-memory)",
            param,
            (len(prompt), pool_tokens),
        )
    return pool_tokens - len(prompt)


def attention_numbers(message: Generate) -> int:
    """Upper bound of the number of values in all attention matrices of a request."""
    each = [len(message.prompts[row.prompt]) * row.max_new_tokens for row in message.rows if row.attention]
    return sum(each) * message.params.num_return_sequences


def check_attention_size(message: Generate, reason: str = "") -> None:
    """Raise InvalidRequest if the attention matrices of a request may have more than `MAX_ATTENTION_NUMBERS` values.

    reason: purpose of the matrices, for the error; empty if they are for the option `return_attention`.
    """
    numbers = attention_numbers(message)
    if message.params.attention and numbers > MAX_ATTENTION_NUMBERS:
        subject = f"{reason} may need" if reason else "`return_attention` may return"
        raise InvalidRequest(
            f"{subject} {numbers} numbers (source tokens times `max_new_tokens` of every answer); "
            f"the limit is {MAX_ATTENTION_NUMBERS}",
            "inputs" if reason else "return_attention",
        )
