"""Finds the memory that a model would need, without reading its weights."""

from __future__ import annotations

import torch
from torch import Tensor

from models.layers.heads import LanguageModel, MaskedLanguageModel
from server.engine.loading.kv_memory import agent_bytes
from server.engine.loading.loaded_checkpoint import LoadedCheckpoint
from server.engine.loading.speculation import agent_shares
from server.ipc.wire.descriptions import EngineOptions
from server.ipc.wire.model_messages import ModelMeasured

MIN_KV_BYTES = 64 << 20
"""Smallest KV cache to plan for a model, so that several short sequences run together. A model that cannot use as much
gets less."""
LOGIT_COPIES = 3
"""Copies of the logits of a step: as computed, as changed by penalties, and as sorted for sampling."""
STEP_TENSORS = 8
"""Assumed number of tensors that exist at the same time in a step. Each is as wide as the hidden states, or as the
longest one-dimensional parameter of the layers if that is wider. The head is left out: only the rows with logits are as
wide as the vocabulary, and they are counted apart."""


class MeasuringMemory:
    """Counts the bytes of tensors and keeps none. Implements `TensorMemory`.

    It is declared as filled, so that loading reads no weight and makes all tensors on the meta device.
    """

    is_filled = True

    def __init__(self) -> None:
        self.kept_bytes = 0

    def keep(self, tensor: Tensor) -> Tensor:
        """Count the bytes of a tensor and return it. Loading calls this once for tied parameters."""
        self.kept_bytes += tensor.numel() * tensor.dtype.itemsize
        return tensor


def all_weight_bytes(loaded: LoadedCheckpoint) -> int:
    """Bytes of the weights of a model and its adapters. Its tensors may be on the meta device."""
    model = loaded.model
    return model.weight_bytes + sum(adapter.weight_bytes for adapter in model.adapters.values())


def needed_memory(
    epoch: int, loaded: LoadedCheckpoint, draft: LoadedCheckpoint | None, weight_bytes: int, options: EngineOptions
) -> ModelMeasured:
    """Memory that a model would need in this worker, for weights, KV cache and steps.

    epoch: number of the worker process, for the message.
    loaded: the model, with tensors on the meta device.
    draft: its draft model; None for a model without draft model.
    weight_bytes: bytes of the weights of both models together.
    """
    needs = loaded.pool_needs(options)
    drafts = {} if draft is None else {loaded.spec.name: draft}
    (agents,) = agent_shares([loaded], drafts, options)
    # A model with a short context runs several sequences at once.
    kv_bytes = max(agents, min(MIN_KV_BYTES, sum(need.max_bytes for need in needs.values())))
    smallest = sum(need.block_bytes * min(need.blocks, 8) for need in needs.values())
    extra = agents - agent_bytes(needs)
    return ModelMeasured(
        epoch,
        loaded.spec.name,
        weight_bytes,
        min(2 * smallest + extra, kv_bytes),
        kv_bytes,
        _step_bytes(loaded, options),
    )


def _step_bytes(loaded: LoadedCheckpoint, options: EngineOptions) -> int:
    """Estimate of the memory in bytes that the largest step needs besides weights and KV pools."""
    transformer, config, sizes = loaded.model.transformer, loaded.model.config, loaded.step_tokens(options)
    tokens = max(sizes.batch if loaded.generates else 0, sizes.encode if loaded.encodes or loaded.source_tokens else 0)
    stacks = [stack for stack in (transformer.encoder, transformer.decoder) if stack is not None]
    widest = max((each.shape[0] for stack in stacks for each in stack.parameters() if each.dim() == 1), default=0)
    has_logits = isinstance(transformer.head, LanguageModel | MaskedLanguageModel)
    logits = options.max_batch_rows * config.vocab_size * LOGIT_COPIES if has_logits else 0
    return (tokens * STEP_TENSORS * max(widest, config.hidden_size) + logits) * torch.float32.itemsize
