"""What a request asks of decoding, with what is neutral as default."""

from __future__ import annotations

from typing import Literal

import msgspec


class TimestampRules(msgspec.Struct, frozen=True, array_like=True):
    """How a speech model may say times: tokens from `first_id` on, 20 ms apart; the one before them means none at all.

    max_initial: the latest time that the first token may say, counted from `first_id`; None for any.
    """

    first_id: int
    max_initial: int | None = None


class GenerationParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings that all rows of a request share; `GenerateRow` has the others.
    Every field is resolved: nothing is left for the engine to default.

    end_token_ids: the checkpoint's end-of-text tokens (empty for `ignore_eos`); stop_token_ids: the client's own.
    Both end a sequence and both are kept out while fewer than `min_new_tokens` were made.
    stop_texts: with beams, strings (UTF-8) that end a hypothesis. Without beams the HTTP side finds them.
    bad_words_ids: token sequences never to complete. suppress_token_ids: single tokens never to make,
    begin_suppress_token_ids: not as the first new one. timestamps: whether and how tokens that say times are made.
    allowed_token_ids: if any, no other token is made unless it is forced. logit_bias: what to add to a token's logit.
    presence_penalty, frequency_penalty: for a token once made, and for each time it was made.
    encoder_no_repeat_ngram_size: length of the n-grams of the source (or a decoder's prompt) never to make; 0: none.
    renormalize_logits: log-softmax once more after masks and penalties (opus-mt's beams are trained that way).
    forced_bos_token_id: made as the first new token, forced_eos_token_id as the last one when length runs out.
    num_return_sequences <= num_beams; both 1 without beam search. `early_stopping`: True, False or "never".
    num_beam_groups divides num_beams; diversity_penalty: what a token costs for each earlier group's beam that took it.
    top_logprobs: alternatives to report beside each token's own log-probability when `logprobs` is set.
    stream: with beams, whether to report the tokens that every beam agrees on as they become certain.
    grammar: what the text has to be, in llguidance's format; empty: anything. It says when the text may end.
    attention: whether to tell, at the end, what each token looked at in the source text of an encoder-decoder.
    """

    min_new_tokens: int = 0
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    typical_p: float = 1.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    no_repeat_ngram_size: int = 0
    encoder_no_repeat_ngram_size: int = 0
    renormalize_logits: bool = False
    bad_words_ids: list[list[int]] = []
    suppress_token_ids: list[int] = []
    begin_suppress_token_ids: list[int] = []
    timestamps: TimestampRules | None = None
    allowed_token_ids: list[int] = []
    logit_bias: dict[int, float] = {}
    end_token_ids: list[int] = []
    stop_token_ids: list[int] = []
    stop_texts: list[bytes] = []
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    num_beams: int = 1
    num_return_sequences: int = 1
    length_penalty: float = 1.0
    early_stopping: bool | Literal["never"] = False
    num_beam_groups: int = 1
    diversity_penalty: float = 0.0
    logprobs: bool = False
    top_logprobs: int = 0
    stream: bool = False
    grammar: str = ""
    attention: bool = False
