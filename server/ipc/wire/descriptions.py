"""Descriptions of models and engine options, shared by the HTTP process and the workers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple

import msgspec

Device = Literal["cpu", "cuda"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
"""Device chosen by the operator. `auto` is CUDA if available; the worker reports the outcome in `Ready`."""
DType = Literal["float32", "bfloat16", "float16"]
DTypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
"""`auto` is float32 on a CPU and bfloat16 on CUDA, or float16 on a device without bfloat16; `ModelInfo.dtype` has the
outcome."""
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
"""`int8`: weights and activations are rounded in groups of 32 inputs, each with its own scale. `int8-fast`: weights are
rounded per output channel, activations per row. `int6`: as `int8`, with weights of 6 bits. `int4`: weights are rounded
to 4 bits in groups of 32 inputs, each with a scale and a minimum, and activations to int8 in such groups; the weights
that matter most are rounded as with `int6`: projections to queries, keys and values, last products of feed-forwards,
output heads and tied embeddings. `int5`: as `int6`, but the products before the activations of feed-forwards have 4
bits as with `int4`. The other values name the size of the groups of weights without minimums, and round heads and tied
embeddings as `int8` does; with `-zero`, each group also has a zero point.

Norms and hidden states keep the model dtype. Attention and its KV cache use bfloat16 if the model dtype is float32.
"""
KVCacheDType = Literal["auto", "int8"]
"""`auto`: keys and values keep the dtype of attention. `int8`: they are rounded, with a scale per head and token."""
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
"""Values per log-mel frame of a recording, for a model whose encoder reads samples: they show where speech is."""
AGENT_TOKENS = 32_768
"""Length of a long conversation of a program that calls tools: prompt, answers, and results of its calls. The default
memory for keys and values holds one such sequence of each model."""
Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


class Speculation(msgspec.Struct, frozen=True):
    """Source of draft tokens for speculative decoding: a draft model, or n-grams of the text if both are empty.

    draft_model: name of a loaded model.
    draft_directory: directory of a checkpoint to load as draft model.
    is_optional: a model that cannot use drafts is served without them.
    """

    draft_model: str = ""
    draft_directory: str = ""
    is_optional: bool = False


class ModelSpec(msgspec.Struct, frozen=True):
    """A model to load.

    name: name that clients use.
    directory: directory of the checkpoint.
    dtype: dtype of weights and hidden states.
    quantization: quantization of the linear layers, or None.
    speculation: source of draft tokens, or None.
    adapters: low-rank adapters by the name that clients use as model name, with their directories.
    answers: serve a language model as a reranker, by the logits of its answer.
    kv_cache_dtype: dtype of its KV cache; None for `EngineOptions.kv_cache_dtype`.
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

    batch: of a decoder step, prefill included; a source token counts half. While a decoder runs, an encoder step has
        at most an eighth of it until its time was measured.
    encode: of an encoder step while no decoder runs. A longer text runs alone.
    """

    batch: int
    encode: int


DEFAULT_STEP_TOKENS: Mapping[Device, StepTokens] = {"cpu": StepTokens(512, 1536), "cuda": StepTokens(2048, 16384)}
"""Sizes of a step where the operator has set none. A GPU needs more tokens to be busy, and launches its kernels once
for all of them; on a CPU more tokens only lengthen the step."""


class EngineOptions(msgspec.Struct, frozen=True):
    """Limits and sizes of the engine.

    max_batch_tokens, max_encode_tokens: see `StepTokens`; None for the default of the device. `step_tokens` has the
        outcome.
    max_batch_rows: decoder rows of one step, per model.
    block_size: tokens per KV block.
    kv_cache_bytes: bytes of all KV pools of one worker; divided by need among the generating models. 0: on a CPU what
        `server.engine.process.cpu_memory` chooses, on CUDA what weights and steps leave free.
    free_memory_bytes: memory that was free when the server started; 0 if it is not known.
    num_workers: number of workers of the server.
    kv_cache_dtype: dtype of the KV caches of models that do not have their own.
    threads: number of torch threads; 0 means the number of usable cores.
    stats_interval_seconds: time between two `Stats` messages.
    prefix_cache: requests share keys and values of common prompt beginnings.
    speculative_tokens: maximum number of draft tokens; None for the default of each drafter.
    worker_index: index of this worker among the workers of the server. On CUDA it selects the device.
    on_demand: models are loaded by messages while the worker runs; it may start without any.
    packed_cache, packed_cache_bytes: directory with packed weights, and the most bytes of its files; empty for none.
    checks_packed_cache: compare all its files with their hashes before models load, and remove those that differ.
    """

    max_batch_tokens: int | None = None
    max_encode_tokens: int | None = None
    max_batch_rows: int = 128
    block_size: int = 32
    kv_cache_bytes: int = 1 << 30
    threads: int = 0
    stats_interval_seconds: float = 0.25
    prefix_cache: bool = True
    speculative_tokens: int | None = None
    worker_index: int = 0
    kv_cache_dtype: KVCacheDType = "auto"
    free_memory_bytes: int = 0
    num_workers: int = 1
    on_demand: bool = False
    packed_cache: str = ""
    packed_cache_bytes: int = 0
    checks_packed_cache: bool = False

    def step_tokens(self, device: Device) -> StepTokens:
        """Sizes of a step on a device."""
        batch, encode = DEFAULT_STEP_TOKENS[device]
        return StepTokens(self.max_batch_tokens or batch, self.max_encode_tokens or encode)


def state_slots(rows: int) -> int:
    """Slots of the state memory that a request needs if no other request runs. rows: its beams, or 1.

    Each row needs a slot. Every two beams need one more, because the state of a beam is still read when its children
    write theirs. The snapshot with which a prompt begins needs one too.
    """
    return rows + rows // 2 + 1


class GenerationInfo(msgspec.Struct, frozen=True):
    """Generation settings of a checkpoint: special tokens, and defaults of API fields. None: not set.

    Read from `generation_config.json`, else `config.json`, else the family; see `models.generation_defaults`.
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
    """How texts of one side of late interaction become tokens; see `models.config.late_interaction.TextSide`."""

    marker: str = ""
    prompt: str = ""
    max_tokens: int | None = None
    skipped_tokens: list[str] = []
    skipped_texts: list[str] = []


class QueryExpansionInfo(msgspec.Struct, frozen=True):
    """Tokens that are put after a short query; see `models.config.late_interaction.QueryExpansion`."""

    length: int
    token: str = ""
    attended: bool = False
    cuts: bool = True


class LateInteractionInfo(msgspec.Struct, frozen=True):
    """One vector per token; see `models.config.late_interaction.LateInteractionConfig`. width: values of a vector."""

    width: int
    query: TextSideInfo
    document: TextSideInfo
    expansion: QueryExpansionInfo | None = None
    first_skipped: int = 0
    averages: bool = False


class AnswerInfo(msgspec.Struct, frozen=True):
    """The answer tokens by which a language model scores a document; see `models.config.sentence.AnswerLogits`."""

    positive: int
    negative: int | None = None
    adds_generation_prompt: bool = False


class LabelledSpansInfo(msgspec.Struct, frozen=True):
    """Entities with labels of the request; see `models.config.entities.LabelledSpansConfig`."""

    label_token: str
    label_token_id: int | None
    max_words: int
    opening: tuple[str, ...] = ()
    closing: tuple[str, ...] = ()
    schema: str | None = None
    class_token: str = ""


class ModelInfo(msgspec.Struct, frozen=True):
    """Description of a loaded model for the HTTP process.

    context_tokens: longest sequence. Decoder: prompt and new tokens. Encoder: the text. Encoder-decoder: new tokens.
    source_tokens: longest source of an encoder-decoder, else 0.
    kv_blocks: number of blocks of each pool (`self`, and `cross` with an encoder); empty without generation.
    kv_bytes: memory of all blocks. kv_context_bytes: memory of one sequence of full length with the default beams.
    kv_cache_dtype: dtype of keys and values in the blocks.
    generation: special tokens and generation defaults of the checkpoint.
    labels: class names by index.
    problem_type: kind of classification: `single_label_classification`, `multi_label_classification`, `regression`.
    normalize: vectors are scaled to length 1 by default.
    pooling: pooling methods of the vector of a text; several vectors are concatenated.
    include_prompt: the vector of a text includes the tokens of its prompt.
    embedding_size: size of the vector of a text; 0 means hidden_size.
    load_seconds: time to load the model.
    is_from_packed_cache: its weights were read from the packed cache, not packed.
    num_mels: values per audio frame of the encoder input; 0 for text.
    samples_per_token, min_samples: of a model that reads samples, samples between two tokens of its encoder (two labels
        of a CTC head) and samples of the shortest recording; 0 for other models.
    checkpoint_format: format of the quantised matrices of the checkpoint; empty if it has none.
    notes: properties of the checkpoint that cost memory or are not used, for the operator.
    adapter_of: for an adapter, the name of its model, whose KV blocks it uses. `parameters` and `weight_bytes` then
        count the adapter only.
    late_interaction: how texts get a vector per token; None for models without such vectors.
    token_weights: the weights of a text are those of its tokens (BGE-M3), not of vocabulary entries.
    labelled_spans: how texts are read together with labels; None for models whose labels are fixed.
    answer: tokens whose logits are the score of a language model as a reranker; None where the checkpoint names none.
    max_step_tokens: largest number of tokens of a step: of a decoder step, or of an encoder step without generation.
    execution: how the steps run: `program` (one call of the compiled kernels), `CUDA graphs` (decode steps), or
        `eager: REASON` (operation by operation).
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

    @property
    def is_eager(self) -> bool:
        """Whether the steps run operation by operation."""
        return self.execution.startswith("eager")

    @property
    def usable_tokens(self) -> int:
        """Longest sequence that the KV cache holds, with the default beams; at most `context_tokens`."""
        if "self" not in self.kv_blocks:
            return self.context_tokens
        blocks = self.kv_blocks["self"] // (self.generation.num_beams or 1)
        return min(self.context_tokens, blocks * self.block_size)

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds, over all sequences; 0 without generation. A token of a beam is one token."""
        return self.kv_blocks.get("self", 0) * self.block_size

    @property
    def agent_tokens(self) -> int:
        """Length of the sequences that `agent_sequences` counts."""
        return min(self.context_tokens, AGENT_TOKENS)

    @property
    def agent_sequences(self) -> int:
        """Sequences of `agent_tokens` tokens that the KV cache holds together, with the default beams."""
        beams = self.generation.num_beams or 1
        fitting = self.kv_blocks.get("self", 0) // (beams * -(-self.agent_tokens // max(self.block_size, 1)))
        if "state" in self.kv_blocks:
            fitting = min(fitting, self.kv_blocks["state"] // state_slots(beams))
        return fitting

    @property
    def usable_source_tokens(self) -> int:
        """Longest source that the KV cache holds; at most `source_tokens`."""
        if "cross" not in self.kv_blocks:
            return self.source_tokens
        return min(self.source_tokens, self.kv_blocks["cross"] * self.block_size)
