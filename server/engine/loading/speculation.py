"""Sets up speculative decoding at start: finds draft models, checks them, and divides the KV memory."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from models.steps.kv_cache import KVCache
from server.engine.cache.block_manager import BlockManager
from server.engine.device.runner import Runner
from server.engine.drafting.draft_model import ModelDrafter
from server.engine.drafting.drafts import (
    DRAFT_TOKENS,
    HEAD_DRAFT_TOKENS,
    NGRAM_DRAFT_TOKENS,
    Drafter,
    NgramDrafter,
)
from server.engine.drafting.head_drafter import HeadDrafter
from server.engine.loading.kv_memory import PoolNeed, agent_bytes, divide_by_need, pool_blocks, pool_need
from server.engine.loading.load import LoadError
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.model_building import check_cache
from server.ipc.wire.descriptions import EngineOptions, ModelSpec


def find_drafts(
    loaded: Sequence[LoadedCheckpoint], read: Callable[[ModelSpec], LoadedCheckpoint]
) -> dict[str, LoadedCheckpoint]:
    """Find or load the draft models of all models. Returns them by the name of their target model.

    loaded: all loaded models. read: loads a draft model that is not one of these.
    Raises LoadError if a target model cannot use drafts, unless its drafts are optional, or if a draft model does not
    match its target model.
    """
    by_name = {model.spec.name: model for model in loaded}
    drafts: dict[str, LoadedCheckpoint] = {}
    for model in loaded:
        name, way = model.spec.name, model.spec.speculation
        problem = why_without_drafts(model)
        if way is None or (problem is not None and way.is_optional):
            continue
        if problem is None and way.prediction_head and model.model.draft_head is None and not way.is_optional:
            problem = "its checkpoint has no prediction head that can draft (--speculative mtp)"
        if problem is not None:
            raise LoadError(f"model {name!r}: {problem}")
        if way.draft_model:
            drafts[name] = by_name[way.draft_model]
        elif way.draft_directory:
            drafts[name] = read(ModelSpec(f"{name} draft", way.draft_directory, model.spec.dtype))
        if name in drafts:
            check_draft(model, drafts[name])
    return drafts


def why_without_drafts(model: LoadedCheckpoint) -> str | None:
    """Why a model cannot use drafts, or None if it can."""
    if not model.generates:
        return "speculative decoding needs a model that generates text"
    if model.keys_depend_on_length:
        return "keys that depend on the text length exclude speculative decoding"
    return None


def check_draft(model: LoadedCheckpoint, draft: LoadedCheckpoint) -> None:
    """Raise LoadError if the draft model cannot be used.

    Both models must be decoders with equal vocabulary size and special tokens. Keys of the draft model must not depend
    on the length of the text. A draft model has no mixers, because their states cannot return to an earlier token.
    """
    name, other = model.spec.name, draft.spec.name
    for decoder in (model, draft):
        if not decoder.generates or decoder.model.config.is_encoder_decoder:
            raise LoadError(
                f"model {name!r}: target and draft model must be decoders; {decoder.spec.name!r} is not one"
            )
    if draft.keys_depend_on_length:
        raise LoadError(f"model {name!r}: the keys of its draft model {other!r} depend on the length of the text")
    if draft.model.transformer.mixers():
        raise LoadError(
            f"model {name!r}: its draft model {other!r} has states of whole texts, which cannot drop rejected tokens"
        )
    sizes = model.model.config.vocab_size, draft.model.config.vocab_size
    if sizes[0] != sizes[1]:
        raise LoadError(f"model {name!r} has {sizes[0]} tokens, its draft model {other!r} has {sizes[1]}")
    for role in ("bos_token_id", "end_token_ids", "pad_token_id"):
        ids = getattr(model.model.generation, role), getattr(draft.model.generation, role)
        if ids[0] != ids[1]:
            raise LoadError(f"model {name!r} and its draft model {other!r} differ in {role}: {ids[0]} and {ids[1]}")


def make_drafter(
    model: LoadedCheckpoint, draft: LoadedCheckpoint | None, options: EngineOptions, kv_memory_bytes: int
) -> tuple[int, Drafter | None]:
    """Create the drafter of a model.

    draft: the draft model; None to draft with the draft head of the model, or else from n-grams.
    kv_memory_bytes: memory for keys and values of the model and its draft model, in bytes.
    The memory is divided so that both pools hold the same number of tokens, or by need if the model has mixers.
    Returns the bytes that are left for the target model, and the drafter; None if the model uses no drafts.
    Raises LoadError if the draft model gets less than one block or its memory cannot be allocated.
    """
    way = model.spec.speculation
    if way is None or why_without_drafts(model) is not None:
        return kv_memory_bytes, None
    if model.model.draft_head is not None:
        return kv_memory_bytes, _head_drafter(model, options)
    if way.prediction_head:
        return kv_memory_bytes, None
    if draft is None:
        return kv_memory_bytes, NgramDrafter(options.speculative_tokens or NGRAM_DRAFT_TOKENS)
    check_cache(draft, options)
    need = _draft_need(draft, options)
    needs = model.pool_needs(options)
    if "state" in needs:
        own_bytes = kv_memory_bytes * need.bytes // (need.bytes + sum(own_need.bytes for own_need in needs.values()))
    else:
        own_bytes = kv_memory_bytes * need.block_bytes // (need.block_bytes + needs["self"].block_bytes)
    blocks = pool_blocks({"self": need}, own_bytes)["self"]
    if blocks == 0:
        raise LoadError(
            f"model {model.spec.name!r}: {own_bytes:,} bytes of the KV cache are less than one block of its draft "
            "model; use a larger --kv-cache-memory"
        )
    layers = draft.model.transformer.self_attention_layers()
    try:
        cache = KVCache(layers, blocks, options.block_size, draft.kv_dtype(options), draft.device)
    except (torch.OutOfMemoryError, RuntimeError, OSError) as error:
        raise LoadError(f"model {model.spec.name!r}: cannot allocate {own_bytes} bytes for its draft model") from error
    runner = Runner(draft.model.transformer, draft.device, cache, None)
    pool = BlockManager(blocks, options.block_size)
    num_tokens = options.speculative_tokens or DRAFT_TOKENS
    drafter = ModelDrafter(runner, pool, num_tokens, draft.step_tokens(options).batch, draft.context_tokens)
    return kv_memory_bytes - blocks * need.block_bytes, drafter


def _head_drafter(model: LoadedCheckpoint, options: EngineOptions) -> HeadDrafter:
    """Create the drafter of a model with a draft head.

    `build` allocates its cache later, from the memory of the model.
    """
    head = model.model.draft_head
    assert head is not None
    # A step and a pass of the head mainly read weights. A pass also reads those of the output head.
    weights = model.model.weight_bytes - model.model.draft_head_bytes
    logits = head.num_logits * head.config.hidden_size * model.dtype.itemsize
    relative_cost = min((model.model.draft_head_bytes + logits) / max(weights, 1), 1.0)
    num_tokens = options.speculative_tokens or HEAD_DRAFT_TOKENS
    has_mixers = bool(model.model.transformer.mixers())
    return HeadDrafter(head, num_tokens, model.step_tokens(options).batch, relative_cost, has_mixers)


def kv_shares(
    loaded: Sequence[LoadedCheckpoint], drafts: Mapping[str, LoadedCheckpoint], options: EngineOptions
) -> list[int]:
    """Bytes of KV memory for each model and its draft model together; 0 for a model that does not generate."""
    needs = [list(model.pool_needs(options).values()) for model in loaded]
    for model, own in zip(loaded, needs, strict=True):
        if model.spec.name in drafts:
            own.append(_draft_need(drafts[model.spec.name], options))
    return divide_by_need(
        options.kv_cache_bytes,
        [sum(need.bytes for need in own) for own in needs],
        [sum(need.max_bytes for need in own) for own in needs],
        agent_shares(loaded, drafts, options),
    )


def agent_shares(
    loaded: Sequence[LoadedCheckpoint], drafts: Mapping[str, LoadedCheckpoint], options: EngineOptions
) -> list[int]:
    """KV memory in bytes that each model, with its draft model, needs for one sequence of `AGENT_TOKENS` tokens."""
    shares = []
    for model in loaded:
        needs = model.pool_needs(options)
        shares.append(agent_bytes(needs))
        if model.spec.name in drafts:
            # Both pools hold the same number of tokens, see `make_drafter`.
            shares[-1] += _draft_need(drafts[model.spec.name], options).block_bytes * needs["self"].agent_blocks
    return shares


def _draft_need(draft: LoadedCheckpoint, options: EngineOptions) -> PoolNeed:
    layers = draft.model.transformer.self_attention_layers()
    size, rows = options.block_size, options.max_batch_rows
    return pool_need(layers, draft.kv_dtype(options), size, draft.context_tokens, 1, rows)
