"""Messages about generation: requests to a worker, and the events of their rows."""

from __future__ import annotations

from typing import Literal

import msgspec

from server.ipc.wire.logprobs import PackedLogprobs
from server.ipc.wire.message_base import Message
from server.ipc.wire.params import GenerationParams, RequiredTerm

FinishReason = Literal["stop", "length", "timeout"]


class Vocabulary(Message, frozen=True):
    """The bytes of each token of a model.

    Sent once to each worker, before the first `Generate` with a grammar, with required terms, or with beams and stop
    strings.
    tokens: by token id, the bytes that the token adds to a text; empty for special tokens.
    """

    model: str
    tokens: list[bytes]


class SequencePart(Message, frozen=True):
    """A part of a stored set of allowed sequences, which requests name by its id (`GenerationParams.sequence_set`).

    The parts of a set arrive in order, and all of them before the first `Generate` that names the set.

    set_id: unique in the life of the HTTP process, and above 0.
    model: name of the model. Requests to its adapters may name the set too.
    num_nodes: number of nodes of the trie.
    content: the next bytes of the trie: the three arrays of `SequenceTrie`, one after the other.
    """

    set_id: int
    model: str
    num_nodes: int
    content: bytes


class ForgetSequences(Message, frozen=True):
    """Drop a stored set of allowed sequences. No request in progress names it. An unknown id is ignored."""

    set_id: int
    model: str


SequenceMessage = SequencePart | ForgetSequences
"""Messages about stored sets of allowed sequences."""


class GenerateRow(msgspec.Struct, frozen=True, array_like=True):
    """One sequence of a `Generate`, or one beam search: the settings that differ between the rows of a request.

    sequence_id: id of the row. All events of the row have this id, and so has its `Abort`.
    max_new_tokens: limit of generated tokens. Prompt and new tokens together must fit into the context.
    prompt: index into `Generate.prompts`, or into `Generate.frames`. Rows with the same prompt have the same index.
    decoder_token_ids: first tokens of the decoder of an encoder-decoder (start token and any prefix); else empty.
    seed: seed of the random numbers of a sampled row, u64.
    prompt_logprobs: whether to report the log-probabilities of the decoder's prompt, with
        `GenerationParams.top_logprobs` alternatives for each token.
    recorded_tokens: number of leading source positions of a speech model that belong to the recording, for
        `GenerationParams.alignment`. The other positions are padding.
    text_drops_space: whether a space at the start of the generated tokens is left out of the text.
        `GenerationParams.stop_texts` are compared with the text without that space.
    terms: indices into `Generate.terms`: the terms that the text must contain. A row with terms is generated with
        `Generate.term_params`.
    attention: whether attention weights are returned for this row, if `GenerationParams.attention` is set.
    """

    sequence_id: int
    max_new_tokens: int
    prompt: int = 0
    decoder_token_ids: list[int] = []
    seed: int = 0
    prompt_logprobs: bool = False
    text_drops_space: bool = False
    recorded_tokens: int = 0
    terms: list[int] = []
    attention: bool = True


class Generate(Message, frozen=True):
    """Generate text for all rows of one HTTP request. Parameters and prompts are sent once.

    model: name of a model, or of one of its adapters.
    params: settings of all rows without terms.
    terms: terms that texts of rows must contain. Rows refer to them by index.
    term_params: settings of the rows with terms: as `params`, with more beams. None without such rows.
    prompts: token ids of each prompt (decoder) or source text (encoder-decoder). Rows refer to them by index.
    rows: the sequences to generate. Each row is scheduled, answered and aborted independently of the others.
    deadline: time at which unfinished rows end with reason `timeout`, or None. The engine client sets it.
    start_deadline: time at which the HTTP process ends the request if no row has started. None if a row has started, or
        if there is no limit. The engine client sets it.
    frames: sources of a speech model, in place of prompts: float32, little-endian. Log-mel frames are [frames,
        num_mels] for each source; a source has two frames for each of `ModelInfo.source_tokens`. A model that reads
        samples gets the samples of a recording, scaled as the checkpoint asks, at least `ModelInfo.min_samples`.
    cache_salt: requests reuse each other's prompts from the prefix cache only if their salts are equal. The salt is
        opaque and does not identify the client.
    call_id: id of the call. Calls take turns in the worker's queue. 0: each row counts as a separate call.
    key: opaque text that stands for the API key of the call; empty without keys. Keys take turns in the worker's queue.
        The engine client sets it.
    """

    model: str
    params: GenerationParams
    prompts: list[list[int]]
    rows: list[GenerateRow]
    deadline: float | None = None
    frames: list[bytes] = []
    cache_salt: str = ""
    call_id: int = 0
    terms: list[RequiredTerm] = []
    term_params: GenerationParams | None = None
    start_deadline: float | None = None
    key: str = ""

    def params_of(self, row: GenerateRow) -> GenerationParams:
        """The settings of a row: `term_params` if they are given and the row has required terms, else `params`."""
        return self.params if self.term_params is None or not row.terms else self.term_params

    @property
    def num_tokens(self) -> int:
        """Number of tokens of all prompts. A prompt of several rows counts once."""
        return sum(map(len, self.prompts))


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of a row, in order. With beams: further tokens with which the best hypothesis is certain to begin.

    logprobs: log-probabilities of the tokens; None if not requested.
    cached_tokens: prompt tokens that were found in the prefix cache, as in `Finished`. Repeated here because an aborted
        row gets no `Finished`.
    """

    sequence_id: int
    token_ids: list[int]
    logprobs: PackedLogprobs | None = None
    cached_tokens: int = 0


class PromptScored(msgspec.Struct, frozen=True, array_like=True):
    """Log-probabilities of all prompt tokens of a row except the first. Sent before the first new token of the row."""

    sequence_id: int
    logprobs: PackedLogprobs


class Hypothesis(msgspec.Struct, frozen=True, array_like=True):
    """One complete result of a row.

    token_ids: new tokens, with the end token if there is one.
    stop_token_id: the end or stop token that ended the hypothesis, or None.
    score: with beams, sum of log-probabilities / length ** length_penalty; else None.
    logprobs: log-probabilities of the tokens; None if not requested.
    attention: float32, little-endian; None if not requested. For `GenerationParams.attention`: [new tokens, source
        tokens], cross-attention averaged over the heads of the last layer. For `GenerationParams.alignment`: [new
        tokens - 1, recorded tokens], normalised cross-attention (`models.steps.alignment`), without the last new token.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    stop_token_id: int | None = None
    score: float | None = None
    logprobs: PackedLogprobs | None = None
    attention: bytes | None = None


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A row is complete and its blocks are free.

    hypotheses: best first, at most `num_return_sequences`. They include the tokens of earlier `Tokens` events.
    queue_seconds, prefill_seconds, decode_seconds: from arrival to the first step, from there to the first token, and
        from there to the end.
    cached_tokens: prompt tokens that were found in the prefix cache when the row was admitted.
    probe_logprob: log-probability of the token that `GenerationParams.probe` names, before temperature, penalties and
        masks; None without a probe.
    """

    sequence_id: int
    hypotheses: list[Hypothesis]
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    cached_tokens: int = 0
    probe_logprob: float | None = None
