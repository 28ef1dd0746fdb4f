"""Descriptions of models and engine options, shared by the HTTP process and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

Device = Literal["cpu", "cuda"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
"""Device chosen by the operator. `auto` is CUDA if available; the worker reports the actual device in `Ready`."""
DType = Literal["float32", "bfloat16", "float16"]
DTypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
"""Dtype chosen by the operator. `auto` is float32 on a CPU and bfloat16 on CUDA. On a CUDA device without bfloat16 it
is float16, or float32 if the family needs it. `ModelInfo.dtype` has the actual dtype."""
Quantization = Literal[
    "int8",
    "int8-fast",
    "int6",
    "int5",
    "int4",
    "int4-32",
    "int4-64",
    "int4-128",
    "int4-32-zero",
    "int4-64-zero",
    "int4-128-zero",
]
"""How the weights of linear layers, and their inputs (activations), are rounded.

- `int8`: weights and activations in groups of 32 inputs, each group with a scale.
- `int8-fast`: weights per output channel, activations per row.
- `int6`: as `int8`, with weights of 6 bits.
- `int4`: weights to 4 bits in groups of 32 inputs, each group with a scale and a minimum; activations to int8 in groups
  of 32. The weights that matter most have 6 bits, as with `int6`: query, key and value projections, the last linear
  layer of each feed-forward, output heads and tied embeddings.
- `int5`: as `int6`, but linear layers before the activation function of a feed-forward have 4 bits, as with `int4`.
- `int4-N`: weights to 4 bits in groups of N inputs without minimums; output heads and tied embeddings as with `int8`.
- `int4-N-zero`: as `int4-N`, and each group has a zero point.

Norms and hidden states keep the model dtype. Attention and its KV cache use bfloat16 if the model dtype is float32.
"""
KVCacheDType = Literal["auto", "int8", "fp8"]
"""Dtype of the KV cache. `auto`: keys and values keep the dtype of attention. `int8`: keys and values are rounded, with
a scale per head and token."""
Task = Literal[
    "generate",
    "translate",
    "embed",
    "classify",
    "rerank",
    "fill_mask",
    "token_classify",
    "question_answer",
    "transcribe",
    "embed_sparse",
    "late_interaction",
]
LOG_MEL_BANDS = 80
"""Values per log-mel frame of a recording if the encoder reads samples. The frames only show where speech is."""
AGENT_TOKENS = 32_768
"""Tokens of a long conversation of a program that calls tools (an agent): prompt, answers, and results of its calls.
The default memory for keys and values has room for one such sequence of each model."""
Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


class Speculation(msgspec.Struct, frozen=True):
    """Source of draft tokens for speculative decoding: a draft model, a draft head, or else n-grams of the text.

    draft_model: name of a loaded model that drafts; empty if no such model is used.
    draft_directory: directory of a checkpoint to load as draft model; empty if there is nothing to load.
    eagle_directory: directory of an EAGLE-3 head; empty if no such head is used.
    prediction_head: whether the prediction head in the checkpoint of the model drafts.
    is_optional: whether a model that cannot use drafts is served without drafts, instead of failing to load.
    """

    draft_model: str = ""
    draft_directory: str = ""
    eagle_directory: str = ""
    prediction_head: bool = False
    is_optional: bool = False

    def head_of(self, directory: str) -> str:
        """Directory of the draft head of a model; empty if the model has no draft head.

        directory: directory of the model.
        """
        return directory if self.prediction_head else self.eagle_directory


class ModelSpec(msgspec.Struct, frozen=True):
    """A model to load.

    name: name that clients use.
    directory: directory of the checkpoint.
    dtype: dtype of weights and hidden states.
    quantization: quantization of the linear layers; None if they are not quantized.
    speculation: source of draft tokens; None if no tokens are drafted.
    adapters: directory of each low-rank adapter, by the name that clients use as model name.
    answers: whether a language model is served as a reranker, which scores documents by the logits of its answer.
    kv_cache_dtype: dtype of the model's KV cache; None for `EngineOptions.kv_cache_dtype`.
    """

    name: str
    directory: str
    dtype: DTypeChoice
    quantization: Quantization | None = None
    speculation: Speculation | None = None
    adapters: dict[str, str] = {}
    answers: bool = False
    kv_cache_dtype: KVCacheDType | None = None


class StepTokens(NamedTuple):
    """Largest number of tokens of a step.

    batch: limit of a decoder step, prefill included; a source token counts half. While a decoder runs, an encoder step
        has at most an eighth of this number until step times have been measured.
    encode: limit of an encoder step while no decoder runs. A longer text runs alone.
    """

    batch: int
    encode: int


DEFAULT_STEP_TOKENS: Mapping[Device, StepTokens] = {"cpu": StepTokens(512, 1536), "cuda": StepTokens(2048, 16384)}
"""Default limits of the tokens in a step. A GPU needs many tokens to be busy, and launches its kernels once for all of
them. On a CPU more tokens only lengthen the step."""


class EngineOptions(msgspec.Struct, frozen=True):
    """Limits and sizes of the engine.

    max_batch_tokens, max_encode_tokens: largest number of tokens in a decoder step, and in an encoder step; None for
        the default of the device (`step_tokens`).
    max_batch_rows: largest number of decoder rows of one step, per model.
    block_size: tokens per KV block.
    kv_cache_bytes: bytes of all KV pools of one worker; divided by need among the generating models. 0 means a default:
        on a CPU from `server.engine.process.cpu_memory`, on CUDA the memory that weights and steps leave free.
    free_memory_bytes: memory that was free when the server started; 0 if it is not known.
    num_workers: number of workers of the server.
    kv_cache_dtype: dtype of the KV caches of models whose `ModelSpec` names no dtype.
    threads: number of torch threads; 0 means the number of usable cores.
    stats_interval_seconds: time between two `Stats` messages.
    kv_spill_bytes: bytes of host memory per worker for cached blocks that leave the device; divided among the models
        like `kv_cache_bytes`. With 0, these blocks are dropped. Only on CUDA.
    prefix_cache: whether requests share the keys and values of common prompt beginnings.
    batch_invariant: whether a request gives the same bits alone and in a batch on CUDA, as it always does on a CPU.
    speculative_tokens: maximum number of draft tokens; None for the default of each drafter.
    worker_index: index of this worker among the workers of the server. On CUDA it selects the device.
    on_demand: whether models may be loaded by messages while the worker runs. The worker may then start without models.
    memory_bytes: limit of the memory of models on demand, on each CUDA device or of all workers on a CPU; 0 for no
        limit.
    packed_cache: directory for packed weights; empty if packed weights are not stored.
    packed_cache_bytes: largest total size of the files in that directory.
    checks_packed_cache: whether all these files are compared with their hashes before models load. Files that differ
        are removed.
    """

    max_batch_tokens: int | None = None
    max_encode_tokens: int | None = None
    max_batch_rows: int = 128
    block_size: int = 32
    kv_cache_bytes: int = 1 << 30
    threads: int = 0
    stats_interval_seconds: float = 0.25
    prefix_cache: bool = True
    batch_invariant: bool = False
    speculative_tokens: int | None = None
    worker_index: int = 0
    kv_cache_dtype: KVCacheDType = "auto"
    free_memory_bytes: int = 0
    num_workers: int = 1
    on_demand: bool = False
    packed_cache: str = ""
    packed_cache_bytes: int = 0
    checks_packed_cache: bool = False
    kv_spill_bytes: int = 0
    memory_bytes: int = 0

    def step_tokens(self, device: Device) -> StepTokens:
        """Limits of the tokens in a step on a device: the operator's limits, or the defaults."""
        batch, encode = DEFAULT_STEP_TOKENS[device]
        return StepTokens(self.max_batch_tokens or batch, self.max_encode_tokens or encode)


def state_slots(rows: int) -> int:
    """Number of state slots that a request needs if no other request runs. rows: number of beams of the request.

    Each row needs a slot. Every two beams need one more, because the state of a beam is still read while its children
    write their states. The snapshot with which a prompt begins needs one slot.
    """
    return rows + rows // 2 + 1


class GenerationInfo(msgspec.Struct, frozen=True):
    """Generation settings of a checkpoint: special tokens, and defaults of API fields. None: the field is not set.

    The values come from `generation_config.json`, else from `config.json` (`models.generation_defaults`).
    decoder_start_token_ids: start tokens of the decoder of an encoder-decoder.
    """

    bos_token_id: int | None = None
    end_token_ids: list[int] = []
    pad_token_id: int | None = None
    decoder_start_token_ids: list[int] = []
    forced_bos_token_id: int | None = None
    forced_eos_token_id: int | None = None
    suppress_token_ids: list[int] = []
    begin_suppress_token_ids: list[int] = []
    bad_words_ids: list[list[int]] = []
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


class TextSideInfo(msgspec.Struct, frozen=True):
    """How queries, or documents, become tokens for late interaction.

    marker: token that is inserted after the first token; empty if no token is inserted. prompt: text before each text.
    max_tokens: longest text in tokens; None for the limit of the model.
    skipped_tokens: vocabulary entries that get no vector. skipped_texts: texts whose first token gets no vector.
    Made from `models.config.late_interaction.TextSide`.
    """

    marker: str = ""
    prompt: str = ""
    max_tokens: int | None = None
    skipped_tokens: list[str] = []
    skipped_texts: list[str] = []


class QueryExpansionInfo(msgspec.Struct, frozen=True):
    """Tokens that are added to a short query and get vectors too.

    length: a shorter query is filled up to this number of tokens.
    token: the added token; empty for the mask token, or for the end token if the tokenizer has no mask token.
    attended: whether other tokens attend to the added tokens. cuts: whether a longer query is cut to `length`.
    Made from `models.config.late_interaction.QueryExpansion`.
    """

    length: int
    token: str = ""
    attended: bool = False
    cuts: bool = True


class LateInteractionInfo(msgspec.Struct, frozen=True):
    """How a model makes one vector per token, for late interaction.

    width: number of values of a vector.
    query, document: how queries and documents become tokens.
    expansion: tokens added to queries; None if no tokens are added.
    first_skipped: number of first tokens without a vector.
    averages: whether the score is divided by the number of query vectors.
    Made from `models.config.late_interaction.LateInteractionConfig`.
    """

    width: int
    query: TextSideInfo
    document: TextSideInfo
    expansion: QueryExpansionInfo | None = None
    first_skipped: int = 0
    averages: bool = False


class AnswerInfo(msgspec.Struct, frozen=True):
    """The next tokens by whose logits a language model scores a document.

    positive, negative: token ids, such as the ids of `yes` and `no`. The score is the difference of their logits; if
        `negative` is None, it is the first logit.
    adds_generation_prompt: whether the chat template also writes the beginning of the answer.
    Made from `models.config.sentence.AnswerLogits`.
    """

    positive: int
    negative: int | None = None
    adds_generation_prompt: bool = False


class LabelledSpansInfo(msgspec.Struct, frozen=True):
    """How texts and the labels of a request become tokens, for a model that finds entities with any labels.

    label_token: token before each label. label_token_id: its id; None for the id in the tokenizer.
    max_words: maximum number of words of a text.
    opening, closing: tokens or texts before the first label and after the last label.
    schema: how labels become vectors in GLiNER2; None for GLiNER.
    class_token: token before each label of a classification; empty if the model does not classify.
    Made from `models.config.entities.LabelledSpansConfig`.
    """

    label_token: str
    label_token_id: int | None
    max_words: int
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    schema: str | None = None
    class_token: str = ""


class ModelInfo(msgspec.Struct, frozen=True):
    """Description of a loaded model for the HTTP process.

    context_tokens: longest sequence in tokens. Decoder: prompt and new tokens. Encoder: the text. Encoder-decoder: the
        decoder's tokens.
    source_tokens: longest source of an encoder-decoder, else 0.
    kv_blocks: number of blocks of each pool: `self`, `cross` with an encoder, and `state` (slots) with mixers; empty
        without generation.
    kv_bytes: memory of all blocks. kv_context_bytes: memory of one sequence of full length with the default beams.
    kv_cache_dtype: dtype of keys and values in the blocks.
    generation: special tokens and generation defaults of the checkpoint.
    labels: class names by index.
    problem_type: kind of classification: `single_label_classification`, `multi_label_classification`, `regression`.
    normalize: whether vectors are scaled to length 1 by default.
    pooling: methods that make the vector of a text. If there are several, their vectors are concatenated.
    include_prompt: whether the vector of a text includes the tokens of its prompt.
    embedding_size: number of values in the vector of a text; 0 means hidden_size.
    load_seconds: duration of loading the model.
    is_from_packed_cache: whether the weights were read from the packed cache instead of being packed.
    num_mels: values per audio frame of the encoder input; 0 for text.
    samples_per_token, min_samples: for a model that reads samples, the number of samples between two tokens of its
        encoder (two labels of a CTC head), and the samples of the shortest recording; 0 for other models.
    checkpoint_format: format of the quantised matrices of the checkpoint; empty if it has none.
    notes: warnings for the operator, about properties of the checkpoint that cost memory or are not used.
    adapter_of: for an adapter, the name of its model, whose KV blocks it uses. `parameters` and `weight_bytes` then
        count the adapter only.
    late_interaction: how texts get a vector per token; None for models without such vectors.
    token_weights: whether sparse weights of a text belong to its tokens (BGE-M3), not to vocabulary entries.
    labelled_spans: how texts are read together with labels; None for models whose labels are fixed.
    answer: tokens by whose logits a language model reranks; None if the checkpoint names none.
    max_step_tokens: largest number of tokens of a decoder step; of an encoder step if the model does not generate.
    execution: how the steps run: `program` (one call of the compiled kernels), `CUDA graphs`, or `eager: REASON`
        (operation by operation). Kinds of steps that run eagerly beside CUDA graphs follow after a semicolon.
    drafts: source of draft tokens for speculative decoding, for users; empty without drafts.
    """

    name: str
    family: str
    architecture: str
    tasks: list[Task]
    dtype: DType
    parameters: int
    weight_bytes: int
    vocab_size: int
    hidden_size: int
    context_tokens: int
    source_tokens: int = 0
    block_size: int = 0
    kv_blocks: dict[str, int] = {}
    kv_bytes: int = 0
    kv_context_bytes: int = 0
    kv_cache_dtype: KVCacheDType = "auto"
    is_encoder_decoder: bool = False
    generation: GenerationInfo = GenerationInfo()
    labels: list[str] = []
    problem_type: str | None = None
    normalize: bool = True
    pooling: list[Pooling] = msgspec.field(default_factory=lambda: ["mean"])
    include_prompt: bool = True
    embedding_size: int = 0
    load_seconds: float = 0.0
    is_from_packed_cache: bool = False
    quantization: Quantization | None = None
    num_mels: int = 0
    samples_per_token: int = 0
    min_samples: int = 0
    checkpoint_format: str = ""
    notes: list[str] = []
    adapter_of: str = ""
    late_interaction: LateInteractionInfo | None = None
    token_weights: bool = False
    labelled_spans: LabelledSpansInfo | None = None
    answer: AnswerInfo | None = None
    max_step_tokens: int = 0
    execution: str = ""
    drafts: str = ""

    @property
    def is_eager(self) -> bool:
        """Whether the steps run operation by operation, without a compiled program or CUDA graphs."""
        return self.execution.startswith("eager")

    @property
    def usable_tokens(self) -> int:
        """Longest sequence in tokens for which the KV cache has room, with the default number of beams.

        At most `context_tokens`.
        """
        if "self" not in self.kv_blocks:
            return self.context_tokens
        blocks = self.kv_blocks["self"] // (self.generation.num_beams or 1)
        return min(self.context_tokens, blocks * self.block_size)

    @property
    def kv_tokens(self) -> int:
        """Number of tokens for which the KV cache has room, over all sequences and beams; 0 without generation."""
        return self.kv_blocks.get("self", 0) * self.block_size

    @property
    def agent_tokens(self) -> int:
        """Length in tokens of the sequences that `agent_sequences` counts: `AGENT_TOKENS`, or a shorter context."""
        return min(self.context_tokens, AGENT_TOKENS)

    @property
    def agent_sequences(self) -> int:
        """Number of sequences of `agent_tokens` tokens for which the KV cache has room, with the default beams."""
        beams = self.generation.num_beams or 1
        fitting = self.kv_blocks.get("self", 0) // (beams * -(-self.agent_tokens // max(self.block_size, 1)))
        if "state" in self.kv_blocks:
            fitting = min(fitting, self.kv_blocks["state"] // state_slots(beams))
        return fitting

    @property
    def usable_source_tokens(self) -> int:
        """Longest source in tokens for which the KV cache has room; at most `source_tokens`."""
        if "cross" not in self.kv_blocks:
            return self.source_tokens
        return min(self.source_tokens, self.kv_blocks["cross"] * self.block_size)
