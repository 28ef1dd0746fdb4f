"""Loads a checkpoint into the engine: weights, KV pools, limits, and a description for the HTTP process."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from msgspec import convert
from msgspec.structs import replace

from models.backends import choice
from models.backends.rounded_slots import FP8, MAX_INT8_HEAD
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.checkpoint.loader import LoadedModel, load_model
from models.config import (
    ConfigError,
    ConvolutionalEmbeddingConfig,
    EmbeddingConfig,
    QuestionTypesEmbeddingConfig,
    SamplesEmbeddingConfig,
    StackConfig,
)
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.cache.state_tables import StateBlockTables
from server.engine.device.devices import dtype_of
from server.engine.device.runner import Runner
from server.engine.drafting.drafts import Drafter
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.encoding.audio_encoder import AudioRunner, LogMelEngine
from server.engine.encoding.ctc_engine import CtcEngine
from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.encoding.samples import SamplesRunner
from server.engine.process.host_memory import HostMemoryError, host_pool
from server.engine.process.kv_memory import PoolNeed, pool_blocks, pool_need, state_need
from server.engine.process.packed_cache import PackedCache, packed_key
from server.engine.process.planning_limit import PlanningTooLong, planning_limit
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.scheduler import Scheduler
from server.engine.stepping.engine import ModelEngine
from server.engine.stepping.generation_engine import GenerationEngine
from server.errors import one_line
from server.ipc.wire.descriptions import (
    AGENT_TOKENS,
    LOG_MEL_BANDS,
    AnswerInfo,
    DType,
    EngineOptions,
    GenerationInfo,
    KVCacheDType,
    LabelledSpansInfo,
    LateInteractionInfo,
    ModelInfo,
    ModelSpec,
    StepTokens,
    Task,
)
from server.ipc.wire.messages import EncodeTask
from weights.errors import ResolveError, WeightsError

UNLIMITED_TOKENS = 4096
"""Context of a model whose positions have no limit (T5's buckets). Without attention it is `AGENT_TOKENS`, because
neither the time nor the memory of a token grows with the text (Mamba)."""

ENCODE_TASKS: Mapping[Task, EncodeTask] = {
    "embed": "embed",
    "classify": "classify",
    "fill_mask": "fill_mask",
    "token_classify": "classify_tokens",
    "question_answer": "classify_tokens",
    "transcribe": "log_mel",
    "embed_sparse": "embed_sparse",
    "late_interaction": "late_interaction",
}

ProgressCallback = Callable[[int, int], None]


class LoadError(Exception):
    """A checkpoint cannot be served, and a restart would not help. The message is one line for the operator."""

    def __init__(self, message: str) -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A model whose weights are loaded, without KV pools.

    spec: what was asked to be loaded. model: the loaded model. dtype: dtype of weights and hidden states.
    device: device of the weights. seconds: duration of the load.
    is_from_cache: whether the weights were read from the packed cache.
    """

    spec: ModelSpec
    model: LoadedModel
    dtype: torch.dtype
    device: torch.device
    seconds: float
    is_from_cache: bool = False

    def kv_cache_dtype(self, options: EngineOptions) -> KVCacheDType:
        """The setting `--kv-cache-dtype` for this checkpoint: that of the model if it has one, else of the worker."""
        return self.spec.kv_cache_dtype or options.kv_cache_dtype

    def kv_dtype(self, options: EngineOptions) -> torch.dtype:
        """Dtype of keys and values in the cache: int8 or fp8 if the setting says so, else the dtype of attention."""
        rounded = {"int8": torch.int8, "fp8": FP8}
        return rounded.get(self.kv_cache_dtype(options), self.model.transformer.attention_dtype)

    @property
    def generates(self) -> bool:
        does = bool({"generate", "translate", "transcribe"} & set(self.model.tasks))
        return does and self.model.config.decoder is not None

    @property
    def encodes(self) -> bool:
        return bool(self.encode_tasks)

    @property
    def encode_tasks(self) -> list[EncodeTask]:
        """The `Encode` tasks that the model can compute; empty if there are none."""
        settings = self.model.head_settings
        if settings.spans is not None:
            return ["labelled_spans", "labelled_classes"] if settings.spans.class_token else ["labelled_spans"]
        if settings.answers:
            return ["answer_logits"]
        if self.samples is not None:
            return ["log_mel"] if self.generates else ["ctc"]
        return [ENCODE_TASKS[task] for task in self.model.tasks if task in ENCODE_TASKS]

    @property
    def keys_depend_on_length(self) -> bool:
        """Whether the rotation of keys depends on the text length. Such a model cannot use speculative decoding."""
        return self.model.config.keys_depend_on_length

    @property
    def num_mels(self) -> int:
        """Values per audio frame of the encoder input; 0 for text."""
        encoder = self.model.config.encoder
        embedding = None if encoder is None else encoder.embedding
        return embedding.num_mels if isinstance(embedding, ConvolutionalEmbeddingConfig) else 0

    @property
    def reads_recordings(self) -> bool:
        """Whether the model generates the text of recordings. Its encoder reads log-mel frames or samples."""
        return bool(self.num_mels) or (self.samples is not None and self.generates)

    @property
    def samples(self) -> SamplesEmbeddingConfig | None:
        """Configuration of the encoder's embedding if the encoder reads audio samples; None for other models."""
        encoder = self.model.config.encoder
        embedding = None if encoder is None else encoder.embedding
        return embedding if isinstance(embedding, SamplesEmbeddingConfig) else None

    @property
    def context_tokens(self) -> int:
        transformer = self.model.transformer
        has_states_alone = bool(transformer.mixers()) and not transformer.self_attention_layers()
        return self.model.context_tokens or (AGENT_TOKENS if has_states_alone else UNLIMITED_TOKENS)

    @property
    def source_tokens(self) -> int:
        """Longest input, in tokens, of the encoder or of a decoder with `Encode` tasks; 0 for other decoders."""
        if self.model.config.encoder is None and not self.encodes:
            return 0
        limit = self.model.source_tokens if self.model.config.is_encoder_decoder else self.model.context_tokens
        return limit or UNLIMITED_TOKENS

    def step_tokens(self, options: EngineOptions) -> StepTokens:
        """Limits of the tokens in a step, for the kind of device that this model is on."""
        return options.step_tokens("cuda" if self.device.type == "cuda" else "cpu")

    def pool_needs(self, options: EngineOptions) -> dict[str, PoolNeed]:
        """Memory needs of the pools; empty without generation.

        The pools are `self`, `cross` for a model with cross-attention, and `state` for a model with mixers.
        """
        if not self.generates:
            return {}
        transformer, rows, size = self.model.transformer, options.max_batch_rows, options.block_size
        beams = self.model.generation.num_beams or 1
        head = () if self.model.draft_head is None else self.model.draft_head.config.attention_layers
        pools = {"self": ((*transformer.self_attention_layers(), *head), self.context_tokens, beams)}
        if cross := transformer.cross_attention_layers():
            pools["cross"] = (cross, self.source_tokens, 1)
        needs = {
            name: pool_need(layers, self.kv_dtype(options), size, length, beams, rows)
            for name, (layers, length, beams) in pools.items()
        }
        if mixers := transformer.mixers():
            needs["state"] = state_need(mixers.values(), beams, rows, self.spec.speculation is not None)
        return needs


def unexpected(error: Exception) -> str:
    """Message for an exception that no loader raises on purpose. It blames the files and says where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    at = f" at {'/'.join(Path(frames[-1].filename).parts[-2:])}:{frames[-1].lineno}" if frames else ""
    return f"its files are damaged, or contradict each other ({type(error).__name__}{at})"


def load(
    spec: ModelSpec,
    device: torch.device,
    progress: ProgressCallback,
    memory: TensorMemory = PRIVATE,
    cache: PackedCache | None = None,
) -> LoadedCheckpoint:
    """Load a checkpoint.

    progress: called with the bytes read so far and in total.
    memory: keeps the tensors of the model.
    cache: packed weights of earlier loads, or None. Not used if `memory` already has the tensors.
    Raises LoadError, whatever the reason: invalid or damaged files, too little memory, or too long a planning phase.
    """
    started = time.monotonic()
    try:
        dtype = dtype_of(spec, device)
        adapters = {adapter: Path(directory) for adapter, directory in spec.adapters.items()}
        directory = Path(spec.directory)
        head_path = "" if spec.speculation is None else spec.speculation.head_of(spec.directory)
        head = Path(head_path) if head_path else None
        paths = (directory, *adapters.values(), *(() if head is None else (head,)))
        with planning_limit(paths, progress, limits_memory=device.type == "cpu") as report:

            def read(memory: TensorMemory) -> LoadedModel:
                return load_model(
                    directory, dtype, device, report, spec.quantization, adapters, memory, spec.answers, head
                )

            model, is_from_cache = (
                (read(memory), False)
                if cache is None or memory.is_filled
                else cache.load(spec.name, lambda: packed_key(spec, dtype, device), memory, report, read)
            )
    except (
        choice.QuantizationUnavailable,
        choice.BatchInvarianceUnavailable,
        ConfigError,
        WeightsError,
        ResolveError,
    ) as error:
        raise LoadError(f"model {spec.name!r}: {error}") from error
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise LoadError(f"model {spec.name!r} does not fit into the memory of the device") from error
    except PlanningTooLong as error:
        raise LoadError(
            f"model {spec.name!r}: its settings and names take too long to read, before any weight"
        ) from error
    except Exception as error:
        raise LoadError(f"model {spec.name!r}: {unexpected(error)}") from error
    return LoadedCheckpoint(spec, model, dtype, device, time.monotonic() - started, is_from_cache)


def check_cache(loaded: LoadedCheckpoint, options: EngineOptions) -> None:
    """Raise LoadError if the settings ask for a rounded KV cache and the model cannot have one."""
    kind = loaded.kv_cache_dtype(options)
    if kind == "auto":
        return
    if not loaded.generates:
        if loaded.spec.kv_cache_dtype == kind:
            raise LoadError(f"model {loaded.spec.name!r} has no KV cache: --kv-cache-dtype is for models that generate")
        return
    transformer = loaded.model.transformer
    try:
        choice.check_cache(kind, transformer.attention_dtype, loaded.device)
    except choice.QuantizationUnavailable as error:
        raise LoadError(f"model {loaded.spec.name!r}: {error}") from error
    head = () if loaded.model.draft_head is None else loaded.model.draft_head.config.attention_layers
    layers = (*transformer.self_attention_layers(), *transformer.cross_attention_layers(), *head)
    widest = max((layer.head_dim for layer in layers), default=0)
    if widest > MAX_INT8_HEAD and not choice.runs_cuda_kernels(loaded.device):
        raise LoadError(
            f"model {loaded.spec.name!r}: --kv-cache-dtype int8 takes heads of at most {MAX_INT8_HEAD:,} numbers; "
            f"its heads have {widest:,}"
        )


def build(
    loaded: LoadedCheckpoint, options: EngineOptions, kv_memory_bytes: int, drafter: Drafter | None = None
) -> tuple[ModelEngine, ModelInfo]:
    """Create the KV pools and engines of a model.

    loaded: the loaded model. options: engine options.
    kv_memory_bytes: memory in bytes for keys, values and states; unused if the model does not generate.
    drafter: proposes draft tokens, or None.
    Returns the model's engine and its description. Raises LoadError if the memory is less than one block or than the
    states of one request, if it cannot be allocated, or if the model cannot have the rounded cache that was asked for.
    """
    model, spec = loaded.model, loaded.spec
    config, transformer = model.config, model.transformer
    blocks: dict[str, int] = {}
    caches: dict[str, KVCache] = {}
    check_cache(loaded, options)
    state_memory: StateMemory | None = None
    if loaded.generates:
        layers = {"self": transformer.self_attention_layers(), "cross": transformer.cross_attention_layers()}
        needs = loaded.pool_needs(options)
        states = needs.get("state")
        blocks = pool_blocks(needs, kv_memory_bytes)
        if min(blocks.values()) == 0:
            raise LoadError(
                f"model {spec.name!r}: {kv_memory_bytes:,} bytes of the KV cache are less than one block; use a larger "
                "--kv-cache-memory"
            )
        if states and blocks["state"] < states.blocks:
            raise LoadError(
                f"model {spec.name!r}: {kv_memory_bytes:,} bytes of the KV cache have room for {blocks['state']} of "
                f"the {states.blocks} states that a request needs ({states.block_bytes:,} bytes each); use a larger "
                "--kv-cache-memory"
            )
        try:
            caches = {
                name: KVCache(layers[name], blocks[name], options.block_size, loaded.kv_dtype(options), loaded.device)
                for name in layers
                if name in blocks
            }
            if states:
                state_memory = StateMemory(transformer.mixers(), blocks["state"], loaded.device)
            if isinstance(drafter, HeadDrafter):
                drafter.allocate(blocks["self"], options.block_size, loaded.kv_dtype(options))
        except (torch.OutOfMemoryError, RuntimeError, OSError) as error:
            raise LoadError(
                f"model {spec.name!r}: cannot allocate {kv_memory_bytes:,} bytes for its KV cache; use a smaller "
                "--kv-cache-memory"
            ) from error
    reader = config.encoder if config.encoder is not None else config.decoder
    limits = ModelLimits(
        vocab_size=config.decoder.embedding.vocab_size if config.decoder is not None else 0,
        context_tokens=loaded.context_tokens if config.decoder is not None else 0,
        source_vocab_size=reader.embedding.vocab_size if reader is not None and loaded.source_tokens else 0,
        source_tokens=loaded.source_tokens,
        token_types=_token_types(reader),
        frame_bytes=2 * loaded.source_tokens * loaded.num_mels * torch.float32.itemsize,
        min_samples=0 if loaded.samples is None else loaded.samples.min_samples,
        samples_per_token=0 if loaded.samples is None else loaded.samples.samples_per_token,
        restart_tokens=config.restart_tokens,
        key_variant=config.key_variant,
    )
    step_tokens = loaded.step_tokens(options)
    runner: Runner
    if loaded.num_mels:
        runner = AudioRunner(transformer, loaded.device, caches["self"], caches["cross"], loaded.num_mels)
    elif loaded.samples is not None and loaded.generates:
        runner = SamplesRunner(transformer, loaded.device, caches["self"], caches["cross"], loaded.samples)
    else:
        runner = Runner(transformer, loaded.device, caches.get("self"), caches.get("cross"), state_memory)
    generation: GenerationEngine | None = None
    encoding: EncoderEngine | None = None
    if loaded.generates:
        pools = {
            name: BlockManager(count, 1 if name == "state" else options.block_size) for name, count in blocks.items()
        }
        tables = (
            BlockTables(pools["self"], pools.get("cross"), options.prefix_cache)
            if state_memory is None
            else StateBlockTables(pools["self"], pools["state"], options.prefix_cache, needs["state"].block_bytes)
        )
        if options.kv_spill_bytes and tables.prefix_cache and state_memory is None:
            share = options.kv_spill_bytes * kv_memory_bytes // options.kv_cache_bytes
            try:
                tables.host = host_pool(pools["self"], caches["self"], share)
            except HostMemoryError as error:
                raise LoadError(f"model {spec.name!r}: {error}") from error
        scheduler = Scheduler(tables, step_tokens.batch, options.max_batch_rows)
        generation = GenerationEngine(spec.name, scheduler, runner, limits, drafter)
    if loaded.reads_recordings:
        encoding = LogMelEngine(spec.name, runner, limits, step_tokens, loaded.num_mels or LOG_MEL_BANDS)
    elif loaded.samples is not None:
        encoding = CtcEngine(spec.name, runner, limits, step_tokens, loaded.samples)
    elif loaded.encodes:
        encoding = EncoderEngine(spec.name, runner, limits, step_tokens, model.sentence, model.heads)
    info = _info(loaded, options, blocks, "" if drafter is None else _drafts(loaded))
    return ModelEngine(spec.name, generation, encoding, tuple(model.adapters)), info


def adapter_infos(loaded: LoadedCheckpoint, base: ModelInfo) -> list[ModelInfo]:
    """Descriptions of a model's adapters, which share the tasks and KV blocks of the model.

    base: description of the model.
    """
    return [
        replace(
            base,
            name=name,
            adapter_of=base.name,
            parameters=adapter.parameters,
            weight_bytes=adapter.weight_bytes,
            kv_bytes=0,
            execution="eager: steps with adapters",
        )
        for name, adapter in loaded.model.adapters.items()
    ]


def _drafts(loaded: LoadedCheckpoint) -> str:
    """The source of draft tokens of a model, for users; empty without such a setting, as in a benchmark."""
    way = loaded.spec.speculation
    if way is None:
        return ""
    if way.prediction_head:
        return "prediction head of the checkpoint"
    if way.eagle_directory:
        return f"EAGLE-3 head {Path(way.eagle_directory).name}"
    draft = way.draft_model or Path(way.draft_directory).name
    return f"draft model {draft}" if draft else "n-grams of the text"


def _info(loaded: LoadedCheckpoint, options: EngineOptions, blocks: dict[str, int], drafts: str) -> ModelInfo:
    model = loaded.model
    sentence = model.sentence.config
    needs = loaded.pool_needs(options)
    step_tokens = loaded.step_tokens(options)
    defaults = asdict(model.generation)
    defaults |= {name: _plain(value) for name, value in defaults.items() if isinstance(value, tuple)}
    dtypes: dict[torch.dtype, DType] = {
        torch.float32: "float32",
        torch.bfloat16: "bfloat16",
        torch.float16: "float16",
    }
    return ModelInfo(
        name=loaded.spec.name,
        family=model.family,
        architecture=model.architecture,
        tasks=list(model.tasks),
        dtype=dtypes[loaded.dtype],
        parameters=model.parameters,
        weight_bytes=model.weight_bytes,
        vocab_size=model.config.vocab_size,
        hidden_size=model.config.hidden_size,
        context_tokens=loaded.context_tokens,
        source_tokens=loaded.source_tokens if model.config.is_encoder_decoder else 0,
        max_step_tokens=step_tokens.batch if blocks else step_tokens.encode,
        block_size=options.block_size if blocks else 0,
        kv_blocks=blocks,
        kv_bytes=sum(count * needs[name].block_bytes for name, count in blocks.items()),
        kv_context_bytes=sum(need.bytes for need in needs.values()),
        kv_cache_dtype=loaded.kv_cache_dtype(options) if blocks else "auto",
        is_encoder_decoder=model.config.is_encoder_decoder,
        generation=GenerationInfo(**defaults),
        labels=list(model.labels),
        problem_type=model.problem_type,
        normalize=sentence.normalize,
        pooling=list(sentence.pooling),
        include_prompt=sentence.include_prompt,
        embedding_size=sentence.width(model.config.output_size),
        load_seconds=loaded.seconds,
        is_from_packed_cache=loaded.is_from_cache,
        quantization=loaded.spec.quantization,
        num_mels=loaded.num_mels,
        samples_per_token=0 if loaded.samples is None else loaded.samples.samples_per_token,
        min_samples=0 if loaded.samples is None else loaded.samples.min_samples,
        checkpoint_format=model.checkpoint_format,
        notes=[*model.notes, *_unused_head(model)],
        drafts=drafts,
        **_head_infos(model),
    )


def _unused_head(model: LoadedModel) -> list[str]:
    """A note for users about a prediction head that is not loaded."""
    if not model.has_prediction_head or model.draft_head is not None:
        return []
    return ["the prediction head of the checkpoint is not used: --speculative mtp drafts tokens with it"]


def _head_infos(model: LoadedModel) -> dict[str, Any]:
    """The fields of `ModelInfo` about the extra heads of a checkpoint, such as those for late interaction."""
    settings = model.head_settings
    found: dict[str, Any] = {}
    if settings.late_interaction is not None:
        described = {
            **asdict(settings.late_interaction),
            "width": settings.late_interaction.width(model.config.output_size),
        }
        found["late_interaction"] = convert(described, LateInteractionInfo)
    found["token_weights"] = settings.weights_width is not None
    if settings.spans is not None:
        found["labelled_spans"] = convert(asdict(settings.spans), LabelledSpansInfo)
    if settings.answer is not None:
        found["answer"] = convert(asdict(settings.answer), AnswerInfo)
    return found


def _token_types(reader: StackConfig | None) -> int:
    """Number of token types of a stack that reads texts; 0 if it has only one type or ignores types."""
    embedding = None if reader is None else reader.embedding
    if not isinstance(embedding, EmbeddingConfig) or isinstance(embedding, QuestionTypesEmbeddingConfig):
        return 0
    return embedding.num_token_types if embedding.num_token_types > 1 else 0


def _plain(value: object) -> object:
    """Convert nested tuples to lists."""
    return [_plain(item) for item in value] if isinstance(value, tuple) else value
