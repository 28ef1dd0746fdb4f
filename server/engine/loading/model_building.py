"""Builds the KV pools and the engines of a loaded checkpoint."""

from __future__ import annotations

import torch

from models.backends import choice
from models.backends.rounded_slots import MAX_INT8_HEAD
from models.config import EmbeddingConfig, QuestionTypesEmbeddingConfig, StackConfig
from models.steps.kv_cache import KVCache
from models.steps.state_memory import StateMemory
from server.engine.cache.block_manager import BlockManager
from server.engine.cache.block_tables import BlockTables
from server.engine.cache.state_tables import StateBlockTables
from server.engine.device.runner import Runner
from server.engine.drafting.drafts import Drafter
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.encoding.audio_encoder import AudioRunner, LogMelEngine
from server.engine.encoding.ctc_engine import CtcEngine
from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.encoding.samples import SamplesRunner
from server.engine.loading.host_memory import HostMemoryError, host_pool
from server.engine.loading.kv_memory import pool_blocks
from server.engine.loading.load import LoadError
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_infos import model_info
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.scheduler import Scheduler
from server.engine.stepping.generation_engine import GenerationEngine
from server.engine.stepping.model_engine import ModelEngine
from server.ipc.wire.descriptions import LOG_MEL_BANDS, EngineOptions, ModelInfo


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
    transformer = model.transformer
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
    limits, step_tokens = _limits(loaded), loaded.step_tokens(options)
    runner = _runner(loaded, caches, state_memory)
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
    info = model_info(loaded, options, blocks, drafter is not None)
    return ModelEngine(spec.name, generation, encoding, tuple(model.adapters)), info


def _limits(loaded: LoadedCheckpoint) -> ModelLimits:
    config = loaded.model.config
    reader = config.encoder if config.encoder is not None else config.decoder
    return ModelLimits(
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


def _runner(loaded: LoadedCheckpoint, caches: dict[str, KVCache], state_memory: StateMemory | None) -> Runner:
    """The runner of a model. caches: its KV caches by the name of their pool; empty without generation."""
    transformer = loaded.model.transformer
    if loaded.num_mels:
        return AudioRunner(transformer, loaded.device, caches["self"], caches["cross"], loaded.num_mels)
    if loaded.samples is not None and loaded.generates:
        return SamplesRunner(transformer, loaded.device, caches["self"], caches["cross"], loaded.samples)
    return Runner(transformer, loaded.device, caches.get("self"), caches.get("cross"), state_memory)


def _token_types(reader: StackConfig | None) -> int:
    """Number of token types of a stack that reads texts; 0 if it has only one type or ignores types."""
    embedding = None if reader is None else reader.embedding
    if not isinstance(embedding, EmbeddingConfig) or isinstance(embedding, QuestionTypesEmbeddingConfig):
        return 0
    return embedding.num_token_types if embedding.num_token_types > 1 else 0
