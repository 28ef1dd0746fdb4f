"""Settings of text generation in messages to the worker. The default of each setting has no effect on the text."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.ipc.wire.sections import AnswerSection


class TimestampRules(msgspec.Struct, frozen=True, array_like=True):
    """Rules for the timestamp tokens of a speech model.

    first_id: token id of the time 0; each following id is 20 ms later. The id before it means "no timestamps".
    max_initial: latest time of the first token, as an offset from `first_id`; None for no limit.
    """

    first_id: int
    max_initial: int | None = None


class PromptProbe(msgspec.Struct, frozen=True, array_like=True):
    """Asks for the log-probability of one token after a prefix of the decoder's prompt (`Finished.probe_logprob`).

    position: index of the last token of the prefix.
    token_id: the token after the prefix. For example, a speech model has a token whose probability is high if a window
        has no speech.
    """

    position: int
    token_id: int


class SpeechAlignment(msgspec.Struct, frozen=True, array_like=True):
    """Cross-attention heads of a speech model whose weights show when each token was spoken.

    heads: (layer, head) of each head.
    median_width: width of the median filter over source positions, odd.
    """

    heads: list[tuple[int, int]]
    median_width: int


class RequiredTerm(msgspec.Struct, frozen=True, array_like=True):
    """A word or phrase that a translation must contain as a whole word.

    spellings: ways to write the term: pairs of its text, without a space around it, and its tokens, which may begin
        with a space. The same text may occur with several token sequences.
    """

    spellings: list[tuple[str, list[int]]]


class SequenceTrie(msgspec.Struct, frozen=True, array_like=True):
    """Trie of the token sequences that are allowed as answers. Nodes are numbered breadth first; node 0 is the root.

    tokens: int32, little-endian, [nodes]: the token that leads to each node; -1 for the root.
    first_children: int32, little-endian, [nodes + 1]: the children of node i are the nodes from `first_children[i]` to
        `first_children[i + 1] - 1`, in the order of their tokens.
    ends: uint8, [nodes]: 1 for a node where a sequence ends.
    """

    tokens: bytes
    first_children: bytes
    ends: bytes


class GenerationParams(msgspec.Struct, frozen=True, omit_defaults=True):
    """Settings that all rows of a request share; `GenerateRow` has the settings of one row.

    The HTTP process has replaced all defaults of the checkpoint and of the API by values.

    end_token_ids: end-of-text tokens of the checkpoint; empty for `ignore_eos`. stop_token_ids: stop tokens of the
        client. Both end a sequence, and both are banned until `min_new_tokens` tokens are generated.
    stop_texts: with beams, UTF-8 strings that end a hypothesis. Without beams the HTTP process finds stop strings.
    bad_words_ids: token sequences that are never generated as a whole: the last token is banned.
    suppress_token_ids: tokens that are never generated.
    begin_suppress_token_ids: tokens that are not generated as the first new token.
    timestamps: rules for timestamp tokens; None if no rules apply.
    allowed_token_ids: if not empty, only these tokens are generated, except for forced ones.
    logit_bias: by token id, the value to add to its logit.
    presence_penalty: subtracted from the logit of a token that was generated before.
    frequency_penalty: subtracted from the logit of a token for each time that it was generated.
    no_repeat_ngram_size: length of n-grams that are not generated twice; 0 allows repetitions.
    encoder_no_repeat_ngram_size: length of n-grams of the source (or of a decoder's prompt) that are never generated; 0
        allows all n-grams.
    renormalize_logits: apply log-softmax again after masks and penalties (the checkpoints of opus-mt need it).
    forced_bos_token_id: the first new token; None if it is chosen freely. forced_eos_token_id: the last token of a
        sequence that reaches its length limit; None if it is chosen freely.
    num_return_sequences: number of hypotheses to return; at most num_beams. Both are 1 without beam search.
    early_stopping: True, False or "never", as in transformers.
    num_beam_groups: number of groups in diverse beam search; it divides num_beams.
    diversity_penalty: subtracted from the score of a token for each beam of an earlier group that took the token.
    top_logprobs: alternatives to report besides the log-probability of each token, if `logprobs` is set.
    stream: with beams, report tokens as soon as all beams that can still win agree on them.
    sections: sections of the answer in order, if a grammar describes any of them; else empty.
    attention: return the cross-attention weights of an encoder-decoder.
    processed_logprobs: report `logprobs` after masks and penalties, before temperature. `top_logprobs` must then be 0.
    probe: report the log-probability of a token after a part of the decoder's prompt.
    allowed_sequences: the new tokens, after a forced first token, must be a sequence of this trie and an end token;
        None for any tokens.
    sequence_set: id of a stored set in place of `allowed_sequences`, see `SequencePart`; 0 if the request names no
        stored set.
    alignment: return the normalised cross-attention of these heads of a speech model in `Hypothesis.attention`.
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
    sections: list[AnswerSection] = []
    attention: bool = False
    processed_logprobs: bool = False
    probe: PromptProbe | None = None
    alignment: SpeechAlignment | None = None
    allowed_sequences: SequenceTrie | None = None
    sequence_set: int = 0

    @property
    def has_sequences(self) -> bool:
        """Whether the answer must be one of many sequences, sent with the request or stored."""
        return self.allowed_sequences is not None or self.sequence_set != 0
