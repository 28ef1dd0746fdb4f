"""What crosses the wall between the HTTP process and a worker: typed msgpack messages, no pickle.

To the worker:    Configure, Vocabulary, Generate, Encode, Abort, Shutdown
From the worker:  Progress, Ready, LoadFailed, StepOutput, Stats

Only `Abort` travels against the tokens, only `Stats` beside them. A frame is a 4-byte little-endian length and then
one message. Times are seconds of `time.monotonic()`, which processes of one machine share. Ids of requests are unique
within the life of the HTTP process; a request is one sequence, or one group of beams.
"""

from __future__ import annotations

import struct
from typing import Literal

import msgspec

from server.ipc.descriptions import Device, DeviceChoice, EngineOptions, ModelInfo, ModelSpec, Pooling
from server.ipc.params import GenerationParams

EncodeTask = Literal["embed", "embed_tokens", "classify", "classify_tokens", "fill_mask", "log_mel"]
"""What to read off an encoder: a vector, or class logits, of each text or of each token; or words for a mask. Or,
before any encoder, the frames of a sound."""
FinishReason = Literal["stop", "length", "timeout"]
FailureCode = Literal["engine_error", "timeout", "request_too_large", "not_ready", "invalid_format"]

FRAME_HEADER = struct.Struct("<I")


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of every message; encoded as an array headed by the class name."""


# ---------------------------------------------------------------------------------------------- to the worker


class Configure(Message, frozen=True):
    """First message to a new worker. `epoch` counts the lives of the worker; all its answers carry it."""

    epoch: int
    device: DeviceChoice
    models: list[ModelSpec]
    options: EngineOptions


class Vocabulary(Message, frozen=True):
    """How a model's tokens are spelled, by id: once in a worker's life, before the first `Generate` with a grammar or,
    with beams, stop strings.

    tokens: the bytes that each token adds to a text; empty for those that are no text.
    """

    model: str
    tokens: list[bytes]


class GenerateRow(msgspec.Struct, frozen=True, array_like=True):
    """One sequence of a `Generate`, or one beam search: the settings that differ between the rows of a request.

    request_id: id of the row. All events of the row, and `Abort`, carry it.
    max_new_tokens: limit of generated tokens. Prompt and new tokens together fit the context.
    prompt: index into `Generate.prompts`. Rows of one prompt share its entry.
    decoder_token_ids: first tokens of the decoder of an encoder-decoder (start token and any prefix); else empty.
    seed: seed of the random numbers of a sampled row, u64.
    prompt_logprobs: report the log-probabilities of the decoder's prompt, with `GenerationParams.top_logprobs`
        alternatives for each token.
    text_drops_space: a leading space of the generated text is not part of it. `GenerationParams.stop_texts` are
        compared with the text without that space.
    """

    request_id: int
    max_new_tokens: int
    prompt: int = 0
    decoder_token_ids: list[int] = []
    seed: int = 0
    prompt_logprobs: bool = False
    text_drops_space: bool = False


class Generate(Message, frozen=True):
    """Generate text for all rows of one HTTP request. Parameters and prompts are sent once.

    model: name of a model, or of one of its adapters.
    params: settings that all rows share.
    prompts: token ids of each prompt (decoder) or source text (encoder-decoder). Rows refer to them by index.
    rows: the sequences to generate. Each is scheduled, answered and aborted on its own.
    deadline: time at which unfinished rows end with reason `timeout`, or None.
    frames: source of a speech model, in place of prompts: float32, little-endian, [frames, num_mels]. The number of
        frames is fixed: two for each of `ModelInfo.source_tokens`.
    cache_salt: requests find each other's prompts in the prefix cache only if their salts are equal. The salt is
        opaque and does not identify the client.
    """

    model: str
    params: GenerationParams
    prompts: list[list[int]]
    rows: list[GenerateRow]
    deadline: float | None = None
    frames: bytes = b""
    cache_salt: str = ""


SAMPLES_PER_TOKEN = 320
"""At 16 kHz: a speech model makes one token of 20 ms."""


class EncodeItem(msgspec.Struct, frozen=True, array_like=True):
    """One text of an encoder request; token_type_ids None means all zero. mask_index: where a word is to go.

    samples: for `log_mel`, sound instead of a text: float32, little-endian, mono, 16 kHz, mirrored where it ends.
    prompt_tokens: how many at the beginning do not count in its vector.
    """

    token_ids: list[int]
    token_type_ids: list[int] | None = None
    mask_index: int | None = None
    samples: bytes = b""
    prompt_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """What it counts for under a budget."""
        return len(self.token_ids) or -(-len(self.samples) // (4 * SAMPLES_PER_TOKEN))


class Encode(Message, frozen=True):
    """Run texts through an encoder, and say for each what `task` asks for; logits come raw.

    model: the name of a model, or of one of its adapters.
    Each item is scheduled on its own and answered by an `Encoded` of its own. `pooling` is for `embed` (None: as the
    checkpoint has it, dense layers included), `normalize` for `embed` and `embed_tokens`, `top_k` and `target_ids` for
    `fill_mask`: so many words, of these only if there are any.
    """

    request_id: int
    model: str
    task: EncodeTask
    items: list[EncodeItem]
    pooling: Pooling | None = None
    normalize: bool = True
    top_k: int = 5
    target_ids: list[int] = []
    deadline: float | None = None


class Abort(Message, frozen=True):
    """Forget a request: its client left, or its stop string was seen. Unknown ids are ignored; nothing answers."""

    request_id: int


class Shutdown(Message, frozen=True):
    """Leave the loop and exit with status 0. What is still running is dropped."""


ToWorker = Configure | Vocabulary | Generate | Encode | Abort | Shutdown

# -------------------------------------------------------------------------------------------- from the worker


class Progress(Message, frozen=True):
    """A model is loading: bytes of weights read so far, of how many."""

    epoch: int
    model: str
    done_bytes: int
    total_bytes: int


class Ready(Message, frozen=True):
    """All models are loaded and warm; requests are welcome."""

    epoch: int
    models: list[ModelInfo]
    device: Device = "cpu"


class LoadFailed(Message, frozen=True):
    """A model cannot be loaded, and no restart would help: one line for the operator, naming model and reason."""

    epoch: int
    message: str


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """Log-probability of one token under the raw distribution, before temperature, penalties and masks."""

    token_id: int
    logprob: float
    top: list[tuple[int, float]] = []


class Tokens(msgspec.Struct, frozen=True, array_like=True):
    """New tokens of a request, in order. With beams: those that the best answer is certain to begin with.

    cached_tokens: as in `Finished`, which a request that is aborted never sees.
    """

    request_id: int
    token_ids: list[int]
    logprobs: list[TokenLogprob] | None = None
    cached_tokens: int = 0


class PromptScored(msgspec.Struct, frozen=True, array_like=True):
    """A prompt's log-probabilities, of every token but the first; before the request's first token."""

    request_id: int
    logprobs: list[TokenLogprob]


class Hypothesis(msgspec.Struct, frozen=True, array_like=True):
    """One answer: its new tokens (an end token, if one ended it, included) and, with beams, its score.

    score: sum of log-probabilities / length ** length_penalty. stop_token_id: the token that ended it, if one did.
    attention: float32, little-endian, [new tokens, source tokens], if it was asked for: cross-attention, averaged over
    the heads of the last layer.
    """

    token_ids: list[int]
    finish_reason: FinishReason
    stop_token_id: int | None = None
    score: float | None = None
    logprobs: list[TokenLogprob] | None = None
    attention: bytes | None = None


class Finished(msgspec.Struct, frozen=True, array_like=True):
    """A request is done; its blocks are free. Hypotheses best first, at most `num_return_sequences` of them.

    The whole answer, also what `Tokens` carried before. cached_tokens: tokens of the prompt whose keys and values were
    in the cache when the request began.
    """

    request_id: int
    hypotheses: list[Hypothesis]
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    cached_tokens: int = 0


class Encoded(msgspec.Struct, frozen=True, array_like=True):
    """One item of an `Encode` is done.

    values: float32, little-endian, [rows, width]: one row of the text, or for `embed_tokens` and `classify_tokens` a
    row of each token; as wide as the hidden states, or to classify as there are labels (two to mark answers).
    For `fill_mask`, falling probabilities and beside them, in token_ids, the words that have them. For `log_mel`, a row
    of each frame.
    """

    request_id: int
    index: int
    values: bytes
    rows: int = 1
    token_ids: list[int] = []


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A request ended without an answer. `message` is safe to show to the client."""

    request_id: int
    code: FailureCode
    message: str


class StepOutput(Message, frozen=True):
    """Everything one step brought, in one message. Within a request: prompt, then tokens, then finished."""

    epoch: int
    tokens: list[Tokens] = []
    finished: list[Finished] = []
    encoded: list[Encoded] = []
    failed: list[Failed] = []
    prompts: list[PromptScored] = []


class StepTiming(msgspec.Struct, frozen=True, array_like=True):
    """One step, for the histograms. phase: what it did (`prefill`, `decode`, `mixed`, `encode`).

    mask_wait_seconds: how long the masks of grammars took beyond the forward pass beside them; None without any.
    beam_lag_tokens: of each group of beams that streams and goes on, how many of its tokens are not certain yet.
    """

    model: str
    phase: Literal["prefill", "decode", "mixed", "encode"]
    seconds: float
    rows: int
    tokens: int
    padding_tokens: int = 0
    mask_wait_seconds: float | None = None
    beam_lag_tokens: list[int] = []


class Stats(Message, frozen=True):
    """The heartbeat, sent by the worker's own loop, and what it saw since the last one.

    running, waiting, queue_tokens: now. kv_blocks_used: blocks in use by pool name, over all models. The counters
    (preemptions, wasted_tokens, prefix_queries, prefix_hits) are increments since the last message. prefix_queries:
    prompt tokens that were looked up in the prefix cache; prefix_hits: those of them that were there. drafts: by model,
    how many tokens were guessed and how many of them were right, increments as well.
    """

    epoch: int
    running: int
    waiting: int
    queue_tokens: int
    kv_blocks_used: dict[str, int]
    kv_blocks_total: dict[str, int]
    device_memory_bytes: dict[str, int]
    steps: list[StepTiming] = []
    preemptions: int = 0
    wasted_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    drafts: dict[str, tuple[int, int]] = {}


FromWorker = Progress | Ready | LoadFailed | StepOutput | Stats

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode_frame(message: Message) -> bytes:
    """A message as it goes over the socket: length, then msgpack."""
    body = _encoder.encode(message)
    return FRAME_HEADER.pack(len(body)) + body


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    """Raises msgspec.DecodeError (or ValidationError) for a body that is no message to a worker."""
    return _to_worker.decode(body)


def decode_from_worker(body: bytes | memoryview) -> FromWorker:
    """Raises msgspec.DecodeError (or ValidationError) for a body that is no message from a worker."""
    return _from_worker.decode(body)
