"""Token ids of prompts, source texts and decoder starts, and the number of new tokens that the context leaves."""

from __future__ import annotations

from collections.abc import Sequence

from server.errors import ContextLengthExceeded, InvalidRequest, RequestTooLarge
from server.ipc.client.call import Call
from server.ipc.wire.descriptions import ModelInfo
from server.ipc.wire.messages import Generate
from server.operations.encode import check_ids
from server.operations.generating.generation_options import GenerationOptions
from server.operations.generating.generation_params import check_family
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel
from server.text.languages.languages import TranslationPrompt, UnknownPair
from server.text.tokens.tokenizer import Encoding
from server.text.tokens.truncation import TruncationSide, truncate

MAX_ATTENTION_NUMBERS = 1 << 22
"""Maximum number of numbers in the attention matrices of one request. The worker sends them as 16 MiB of float32."""


def task_prompt(options: GenerationOptions, model: ServedModel, task: str | None = None) -> TranslationPrompt:
    """The prompt that asks the checkpoint for the request's languages, or for a task; empty if the request names none.

    task: name of a task in the checkpoint's `task_specific_params`.
    """
    if options.source_lang is None and options.target_lang is None:
        settings = model.text.tasks.get(task or "")
        return TranslationPrompt() if settings is None else TranslationPrompt(settings.prefix, task=task)
    check_family(options, model.info)
    try:
        return model.text.languages.match(options.source_lang, options.target_lang)
    except UnknownPair as error:
        raise InvalidRequest(str(error), error.param) from None


async def encode_texts(
    runtime: Runtime,
    call: Call,
    model: ServedModel,
    texts: Sequence[str],
    language_prompt: TranslationPrompt,
    options: GenerationOptions,
    param: str,
) -> list[list[int]]:
    """Token ids of each text with the prefix and the language tokens, shortened to `options.truncate` tokens."""

    def ids(encoding: Encoding) -> list[int]:
        encoding = with_language_tokens(encoding, language_prompt)
        if options.truncate is not None:
            encoding = truncate(encoding, options.truncate, truncation_side(model))
        return encoding.ids

    return await runtime.encode_with(
        model.tokenizer,
        [language_prompt.prefix + text for text in texts],
        ids,
        param=param,
        add_special_tokens=language_prompt.trailing_source_ids is None,
        call=call,
    )


def truncation_side(model: ServedModel) -> TruncationSide:
    """A source text loses its end; a decoder's prompt loses its beginning, because the answer continues its end."""
    return "right" if model.info.is_encoder_decoder else "left"


def with_language_tokens(encoding: Encoding, language_prompt: TranslationPrompt) -> Encoding:
    """Token ids of a source text with the language tokens of its translation around it."""
    leading, trailing = language_prompt.leading_source_ids, language_prompt.trailing_source_ids or ()
    return Encoding(
        ids=[*leading, *encoding.ids, *trailing],
        type_ids=[*(0 for _ in leading), *encoding.type_ids, *(0 for _ in trailing)],
        special=[*(True for _ in leading), *encoding.special, *(True for _ in trailing)],
        offsets=[],
    )


def decoder_start(model: ServedModel, language_prompt: TranslationPrompt) -> list[int]:
    """Start tokens of an encoder-decoder's decoder; empty for a decoder-only model.

    Raises InvalidRequest if the start is a language token (mBART) and the request names no target language.
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
    """Token ids of the text with which the answer must begin; empty without one."""
    if not options.decoder_prefix:
        return []
    return model.tokenizer.encode([options.decoder_prefix], add_special_tokens=False, offsets=False)[0].ids


def max_new_tokens(info: ModelInfo, prompt: Sequence[int], start: Sequence[int], param: str) -> int:
    """Number of new tokens that the context has room for.

    prompt: token ids of the prompt or source text. start: token ids with which the decoder starts.
    param: the field of the prompt, which errors name.
    Raises InvalidRequest for an empty prompt, ContextLengthExceeded for one that leaves no room.
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
    """New tokens for which an empty KV pool has room.

    prompt: tokens before them in the decoder. param: the field of the prompt, which errors name.
    Raises ContextLengthExceeded for a prompt that leaves no room, so that programs shorten their conversation, and
    RequestTooLarge for more beams than the pool has blocks, because no prompt is short enough for them.
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
    """Upper bound of the numbers in the attention matrices of all answers together."""
    each = [len(message.prompts[row.prompt]) * row.max_new_tokens for row in message.rows if row.attention]
    return sum(each) * message.params.num_return_sequences


def check_attention_size(message: Generate, reason: str = "") -> None:
    """Raise InvalidRequest if the attention matrices of all answers together may be too large to send.

    reason: purpose of the matrices, if they are not for the option `return_attention`.
    """
    numbers = attention_numbers(message)
    if message.params.attention and numbers > MAX_ATTENTION_NUMBERS:
        subject = f"{reason} may need" if reason else "`return_attention` may return"
        raise InvalidRequest(
            f"{subject} {numbers} numbers (source tokens times `max_new_tokens` of every answer); "
            f"the limit is {MAX_ATTENTION_NUMBERS}",
            "inputs" if reason else "return_attention",
        )
