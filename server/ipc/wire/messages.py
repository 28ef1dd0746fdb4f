"""Messages between the HTTP process and a worker, encoded with msgpack (no pickle).

To the worker:    Configure, Vocabulary, SequencePart, ForgetSequences, Generate, Encode, Abort,
                  MeasureModel, LoadModel, GiveBackCache, UnloadModel, Shutdown
From the worker:  Loading, Computing, Progress, PreparingKernels, Ready, LoadFailed, StepOutput, Stats,
                  ModelMeasured, ModelLoaded, ModelFailed, CacheGivenBack, ModelUnloaded

A frame is a 4-byte little-endian length followed by one message. Times are seconds of `time.monotonic()`, whose clock
all processes of a machine share. A `sequence_id` names one row of a `Generate` or one `Encode`. It is unique in the
life of the HTTP process.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from server.ipc.wire.descriptions import Device, DeviceChoice, EngineOptions, ModelInfo, ModelSpec, Pooling
from server.ipc.wire.logprobs import PackedLogprobs
from server.ipc.wire.params import GenerationParams, RequiredTerm

EncodeTask = Literal[
    "embed",
    "embed_tokens",
    "embed_spans",
    "embed_sparse",
    "late_interaction",
    "max_sim",
    "classify",
    "classify_tokens",
    "labelled_spans",
    "labelled_classes",
    "answer_logits",
    "fill_mask",
    "log_mel",
    "ctc",
]
"""What an `Encode` computes for each item.

- `embed`, `embed_tokens`, `embed_spans`: a vector of the text, of each token, or of each span of tokens.
- `embed_sparse`: weights of vocabulary entries, or of the text's tokens.
- `late_interaction`: a vector of each token, for late interaction. `max_sim`: the score of these vectors with those of
  a query.
- `classify`, `classify_tokens`: class logits of the text, or of each token.
- `labelled_spans`: entities in the text that have one of the given labels. `labelled_classes`: the logit of each given
  label for the whole text.
- `answer_logits`: logits of given next tokens.
- `fill_mask`: the most probable tokens for a mask.
- `log_mel`: log-mel frames of audio samples; no encoder runs.
- `ctc`: the likeliest label of each part of a recording.
"""
FinishReason = Literal["stop", "length", "timeout"]
FailureCode = Literal["engine_error", "timeout", "request_too_large", "not_ready", "invalid_format"]


class Message(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of all messages. Encoded as an array whose first element is the class name."""


# ---------------------------------------------------------------------------------------------- to the worker


class Configure(Message, frozen=True):
    """First message to a new worker.

    epoch: unique number of the worker process, counted up at each start. Every message of the worker contains it.
    weights_descriptor: descriptor of the memory for weights that the workers share, inherited by the worker; None if
        each worker has its own weights. Workers on CUDA ignore it. See `server.ipc.workers.weight_memory`.
    """

    epoch: int
    device: DeviceChoice
    models: list[ModelSpec]
    options: EngineOptions
    weights_descriptor: int | None = None


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


class MeasureModel(Message, frozen=True):
    """Find the memory that a model needs, without reading its weights. Answered by `ModelMeasured` or `ModelFailed`."""

    model: ModelSpec


class LoadModel(Message, frozen=True):
    """Load a model while other models run. Answered by `ModelLoaded` or `ModelFailed`.

    kv_cache_bytes: bytes for the KV pools of the model and its draft model.
    """

    model: ModelSpec
    kv_cache_bytes: int


class GiveBackCache(Message, frozen=True):
    """Empty the KV caches of a loaded model, and drop its requests. Answered by `CacheGivenBack`, for any name.

    The model can be used at once. Its caches take memory again as they fill up.
    """

    model: str


class UnloadModel(Message, frozen=True):
    """Drop a model and its requests. Answered by `ModelUnloaded`, also for an unknown name."""

    model: str


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


FLOAT_BYTES = 4
"""Bytes of one float32 number in the audio of a message."""
SAMPLES_PER_TOKEN = 320
"""Audio samples of one source token of a speech model: 20 ms at 16 kHz."""


class EncodeItem(msgspec.Struct, frozen=True, array_like=True):
    """One text, or one recording, of an `Encode`.

    token_ids: token ids of the text; empty for a recording.
    token_type_ids: token types, or None for all zero.
    mask_index: index of the mask token, for `fill_mask`.
    samples: audio in place of a text: float32, little-endian, mono, 16 kHz. For `log_mel`, padded by reflection; for
        `ctc`, scaled as the checkpoint asks.
    prompt_tokens: number of leading tokens that do not count for the vector of the text, or get no vector of their own.
    spans: (first token, end) of each span for `embed_spans`, and of each word for `labelled_spans`.
    label_indices: index of the token before each label, for `labelled_spans` and `labelled_classes`.
    attended_tokens: number of leading tokens to which all tokens attend; 0 if all tokens attend to all tokens.
    """

    token_ids: list[int]
    token_type_ids: list[int] | None = None
    mask_index: int | None = None
    samples: bytes = b""
    prompt_tokens: int = 0
    spans: list[tuple[int, int]] = []
    label_indices: list[int] = []
    attended_tokens: int = 0

    @property
    def num_tokens(self) -> int:
        """Cost of the item in tokens, for token budgets. A recording costs one token for each 320 samples."""
        return len(self.token_ids) or -(-len(self.samples) // (FLOAT_BYTES * SAMPLES_PER_TOKEN))


class Encode(Message, frozen=True):
    """Run texts or recordings through an encoder. Each item is scheduled separately and answered by one `Encoded`.

    model: name of a model, or of one of its adapters.
    task: the result to compute. Logits are returned without softmax.
    items: the texts or recordings.
    pooling: pooling of `embed`; None means the pooling of the checkpoint, with its dense layers. With "mean",
        `embed_spans` leaves out the dense layers.
    normalize: scale the vectors of `embed`, `embed_tokens` and `embed_spans` to length 1.
    top_k: number of tokens to return for `fill_mask`.
    target_ids: for `fill_mask`, the only tokens that are considered, or empty for all; for `answer_logits`, the tokens
        whose logits are returned.
    deadline: time at which unfinished items fail with `timeout`, or None.
    start_deadline: time at which the HTTP process ends the request if no item has started; None without a limit, or if
        one has started.
    key: opaque text that stands for the API key of the call; empty without keys.
    call_id: id of the call. Calls take turns in the worker's queue. 0: this message counts as a separate call.
    skipped_ids: tokens that get no vector, for `late_interaction` and `max_sim`, or no weight, for `embed_sparse` by a
        model with weights of tokens.
    query: vectors of the query, for `max_sim`: float32, little-endian, [query vectors, width].
    threshold: lowest probability of an entity, for `labelled_spans`.
    """

    sequence_id: int
    model: str
    task: EncodeTask
    items: list[EncodeItem]
    pooling: Pooling | None = None
    normalize: bool = True
    top_k: int = 5
    target_ids: list[int] = []
    deadline: float | None = None
    call_id: int = 0
    skipped_ids: list[int] = []
    query: bytes = b""
    threshold: float = 0.5
    start_deadline: float | None = None
    key: str = ""

    @property
    def num_tokens(self) -> int:
        """Cost of all items in tokens, for token budgets."""
        return sum(item.num_tokens for item in self.items)


class Abort(Message, frozen=True):
    """Drop a row or an `Encode`, because its client disconnected, a stop string was found, or its result is not needed.

    Unknown ids are ignored. The worker sends no answer.
    """

    sequence_id: int


class Shutdown(Message, frozen=True):
    """Exit with status 0. Running requests are dropped."""


ModelMessage = MeasureModel | LoadModel | GiveBackCache | UnloadModel
"""Messages about a model that is loaded on demand. A worker answers each one with a `ModelAnswer`."""
SequenceMessage = SequencePart | ForgetSequences
"""Messages about stored sets of allowed sequences."""
ToWorker = Configure | Vocabulary | SequenceMessage | Generate | Encode | Abort | ModelMessage | Shutdown

# -------------------------------------------------------------------------------------------- from the worker


class Loading(Message, frozen=True):
    """Heartbeat of a worker that is loading models (`server.engine.process.loading_beats`)."""

    epoch: int


class Computing(Message, frozen=True):
    """Heartbeat of a worker that computes a long step (`server.engine.process.step_beats`)."""

    epoch: int


class Progress(Message, frozen=True):
    """Progress of loading a model, in bytes of weights."""

    epoch: int
    model: str
    done_bytes: int
    total_bytes: int


class PreparingKernels(Message, frozen=True):
    """Progress of the kernels of a device, which are compiled at their first launch, or read from a directory.

    num_kernels, seconds: kernels that are prepared so far, and the time that they took.
    directory: where they are kept for the next start. is_complete: whether all kernels of the start are prepared.
    """

    epoch: int
    num_kernels: int
    seconds: float
    directory: str
    is_complete: bool


class Ready(Message, frozen=True):
    """All models are loaded and warmed up; the worker accepts requests.

    num_devices: number of devices of this kind on the machine; 1 for a CPU.
    device_bytes: memory that models on demand may take of the worker's CUDA device; 0 on a CPU and without such models.
    about_device: name, memory and kernels of the device in one line; empty for a CPU.
    """

    epoch: int
    models: list[ModelInfo]
    device: Device = "cpu"
    num_devices: int = 1
    device_bytes: int = 0
    about_device: str = ""


class LoadFailed(Message, frozen=True):
    """A model cannot be loaded, and a restart would not help. message: one line with the model and the reason."""

    epoch: int
    message: str


class ModelMeasured(Message, frozen=True):
    """The memory that a model needs, in bytes.

    weight_bytes: weights of the model, its adapters and its draft model.
    min_kv_bytes: smallest useful KV pools, with room for a short sequence; 0 without generation.
    kv_bytes: KV pools with room for one sequence of `AGENT_TOKENS` tokens, or of full length if that is shorter; at
        least 64 MiB if the model can use as much.
    step_bytes: memory of the largest step besides weights and KV pools.
    """

    epoch: int
    model: str
    weight_bytes: int
    min_kv_bytes: int
    kv_bytes: int
    step_bytes: int


class ModelLoaded(Message, frozen=True):
    """A model is loaded and warmed up. models: descriptions of the model and of its adapters."""

    epoch: int
    model: str
    models: list[ModelInfo]


class ModelFailed(Message, frozen=True):
    """A model could not be measured or loaded. Other models go on. message: one line with the model and the reason."""

    epoch: int
    model: str
    message: str


class CacheGivenBack(Message, frozen=True):
    """The KV caches of a model are empty, and their memory is given back to the system."""

    epoch: int
    model: str


class ModelUnloaded(Message, frozen=True):
    """Answer to `UnloadModel`: the model is dropped, and its memory is returned to the system."""

    epoch: int
    model: str


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


class Encoded(msgspec.Struct, frozen=True, array_like=True):
    """Result of one item of an `Encode`.

    index: index of the item.
    values: float32, little-endian, [rows, width].
        embed, classify: one row, as wide as the vector or the number of labels.
        embed_tokens, classify_tokens: a row for each token.
        embed_spans: a row for each span.
        late_interaction: a row for each token that has a vector.
        max_sim: one number, the sum over the query vectors of the best product with a vector of the text.
        labelled_spans: a row for each entity: first word, last word, label, probability.
        answer_logits: one row, the logit of each of `Encode.target_ids`.
        embed_sparse: one row with the weights above zero, in the order of the vocabulary.
        fill_mask: one row of probabilities in descending order.
        log_mel: a row for each frame.
        ctc: a row for each part of the recording, the log-probability of its likeliest label.
    rows: number of rows of `values`.
    token_ids: the tokens to which the probabilities (`fill_mask`) or weights (`embed_sparse`) belong, or the labels
        (`ctc`); empty for other tasks.
    """

    sequence_id: int
    index: int
    values: bytes
    rows: int = 1
    token_ids: list[int] = []


class Failed(msgspec.Struct, frozen=True, array_like=True):
    """A row or an `Encode` ended without a result. `message` is safe to show to the client."""

    sequence_id: int
    code: FailureCode
    message: str


class StepOutput(Message, frozen=True):
    """All results of one step. The order of events of a row is: prompts, tokens, finished.

    began, sent: when the step began and when this message was made, for the parts of a request's time.
    computing: ids of rows and `Encode`s that the step computes, even without results. An id is reported when its
        request starts, and again every 10 seconds (`REPORT_SECONDS` in `server.engine.sequences.events`). A reported
        request makes progress.
    """

    epoch: int
    tokens: list[Tokens] = []
    finished: list[Finished] = []
    encoded: list[Encoded] = []
    failed: list[Failed] = []
    prompts: list[PromptScored] = []
    computing: list[int] = []
    began: float = 0.0
    sent: float = 0.0


class StepTiming(msgspec.Struct, frozen=True, array_like=True):
    """Measurements of one step, for the histograms.

    rows, tokens, padding_tokens: numbers of rows, tokens and padding tokens in the batch.
    mask_wait_seconds: time spent waiting for grammar masks after the forward pass; None without grammars.
    beam_lag_tokens: for each running beam search that streams, the number of its tokens that are not certain yet.
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
    """Heartbeat of the worker's loop, with its statistics.

    running, waiting: present numbers of running and of waiting rows and `Encode`s.
    queue_tokens: number of tokens that wait.
    kv_blocks_used, kv_blocks_total: numbers of blocks by pool name, summed over all models.
    device_memory_bytes: memory in use by kind.
    state_bytes: memory of state slots of models with mixers: `sequences` and `snapshots`; empty without such models.
    host_bytes: host memory for KV blocks of the prefix cache: `used` and `total`; empty if no model has such memory.
    running_rows, waiting_rows: the numbers `running` and `waiting` by model. A model without any is absent.
    steps: all steps since the last message.
    The remaining fields count events since the last message:
    preemptions, wasted_tokens: preempted rows, and computed tokens that have to be computed again.
    prefix_queries, prefix_hits: prompt tokens looked up in the prefix cache, and prompt tokens found there.
    drafts: by model, number of drafted tokens and number of accepted ones.
    host_blocks: KV blocks that were copied to host memory (`spilled`), back (`restored`), and copies that were dropped
        because their checksum was wrong (`damaged`). Empty if no model has such memory.
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
    state_bytes: dict[str, int] = {}
    running_rows: dict[str, int] = {}
    waiting_rows: dict[str, int] = {}
    host_blocks: dict[str, int] = {}
    host_bytes: dict[str, int] = {}


ModelAnswer = ModelMeasured | ModelLoaded | ModelFailed | CacheGivenBack | ModelUnloaded
"""Answers to a `ModelMessage`."""
FromWorker = Loading | Computing | Progress | PreparingKernels | Ready | LoadFailed | ModelAnswer | StepOutput | Stats

_encoder = msgspec.msgpack.Encoder()
_to_worker: msgspec.msgpack.Decoder[ToWorker] = msgspec.msgpack.Decoder(ToWorker)
_from_worker: msgspec.msgpack.Decoder[FromWorker] = msgspec.msgpack.Decoder(FromWorker)


def encode(message: Message) -> bytes:
    """Encode a message as msgpack."""
    return _encoder.encode(message)


def decode_to_worker(body: bytes | memoryview) -> ToWorker:
    """Decode a message to a worker. Raises msgspec.DecodeError or ValidationError if the body is not such a message."""
    return _to_worker.decode(body)


def decode_from_worker(body: bytes | memoryview) -> FromWorker:
    """Decode a message from a worker. Raises msgspec.DecodeError or ValidationError if the body is no such message."""
    return _from_worker.decode(body)
