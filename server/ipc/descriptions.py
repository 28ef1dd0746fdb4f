"""What models are and how they are loaded, in the words that both sides of the wall use."""

from __future__ import annotations

from typing import Literal

import msgspec

Device = Literal["cpu", "cuda"]
DeviceChoice = Literal["auto", "cpu", "cuda"]
"""What the operator asks for; `auto` is CUDA where there is one. Only the worker can tell, it reports in `Ready`."""
DType = Literal["float32", "bfloat16", "float16"]
DTypeChoice = Literal["auto", "float32", "bfloat16", "float16"]
"""`auto` is float32 on a CPU and bfloat16 on CUDA; `ModelInfo.dtype` has the outcome."""
Quantization = Literal["int8"]
"""`int8`: weights rounded per output channel, activations per row; norms and hidden states keep the dtype, attention
and its cache are bfloat16 where that is float32."""
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
]
Pooling = Literal["mean", "cls", "last", "max", "mean_sqrt", "weighted_mean"]


class Speculation(msgspec.Struct, frozen=True):
    """How a model's next tokens are guessed before it judges them: by a draft model, else from the text itself.

    draft_model: the name of one that is loaded anyway; draft_directory: where one lies that is not.
    """

    draft_model: str = ""
    draft_directory: str = ""


class ModelSpec(msgspec.Struct, frozen=True):
    """A model to load: the name clients use, the directory its checkpoint lies in, and the dtype to hold it in.

    quantization: how its linears are rounded, or None.
    speculation: how its tokens are guessed, if they are.
    adapters: low-rank adapters of this model that clients may ask for as if they were models: names and directories.
    """

    name: str
    directory: str
    dtype: DTypeChoice
    quantization: Quantization | None = None
    speculation: Speculation | None = None
    adapters: dict[str, str] = {}


class EngineOptions(msgspec.Struct, frozen=True):
    """How the engine schedules. Sizes in tokens, blocks, rows or bytes, as named.

    max_batch_tokens: tokens of one step of a decoder, prefill chunks included; those of a source that is to be answered
    count half. An encoder has an eighth of it while others decode.
    max_encode_tokens: tokens of texts in one step of an encoder while nobody decodes; a longer single text goes alone.
    max_batch_rows: decoder rows of one step, per model.
    block_size: token slots of one KV block.
    kv_cache_bytes: bytes for all KV pools of the device together; shared evenly among the generating models.
    threads: torch threads; 0 leaves torch's own choice.
    prefix_cache: whether prompts that begin alike share the keys and values of their common beginning.
    speculative_tokens: guesses of a draft, at most, for models whose tokens are guessed.
    """

    max_batch_tokens: int = 512
    max_encode_tokens: int = 1536
    max_batch_rows: int = 128
    block_size: int = 32
    kv_cache_bytes: int = 1 << 30
    threads: int = 0
    stats_interval_seconds: float = 0.25
    prefix_cache: bool = True
    speculative_tokens: int = 4


class GenerationDefaults(msgspec.Struct, frozen=True):
    """What a checkpoint says of its own decoding: `generation_config.json`, else `config.json`, else the family.

    Special tokens, and the defaults of those API fields that a client may leave out. None: the checkpoint does not say.
    decoder_start_token_ids: what an encoder-decoder's decoder starts from.
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


class ModelInfo(msgspec.Struct, frozen=True):
    """What the HTTP process needs to know of a loaded model.

    context_tokens: longest sequence (decoder: prompt and answer together; encoder: the text; encoder-decoder: the
    answer, with source_tokens for the source). kv_blocks: blocks of each pool, `self` and, with an encoder, `cross`;
    empty where nothing is generated. labels: class names by index. problem_type: the checkpoint's word for its
    classification (`single_label_classification`, `multi_label_classification`, `regression`). num_mels: numbers in a
    frame of the sound that the model hears; 0 where it reads text. include_prompt: whether a prompt's
    tokens count in the vector of a text. embedding_size: of that vector; 0 where it is hidden_size.
    adapter_of: for an adapter, the model that it goes with, whose blocks it uses; parameters and weight_bytes are then
    what it adds.
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
    is_encoder_decoder: bool = False
    generation: GenerationDefaults = GenerationDefaults()
    labels: list[str] = []
    problem_type: str | None = None
    normalize: bool = True
    include_prompt: bool = True
    embedding_size: int = 0
    load_seconds: float = 0.0
    quantization: Quantization | None = None
    num_mels: int = 0
    adapter_of: str = ""
