"""A checkpoint whose weights are loaded, and the settings of its engines that follow from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from models.backends.rounded_slots import FP8
from models.checkpoint.loader import LoadedModel
from models.config import ConvolutionalEmbeddingConfig, SamplesEmbeddingConfig
from server.engine.loading.kv_memory import PoolNeed, pool_need, state_need
from server.ipc.wire.descriptions import AGENT_TOKENS, EngineOptions, KVCacheDType, ModelSpec, StepTokens, Task
from server.ipc.wire.encode_messages import EncodeTask

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


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A model whose weights are loaded, without KV pools.

    spec: specification of the model. model: the loaded model. dtype: dtype of weights and hidden states.
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
        """The value of `--kv-cache-dtype` for this checkpoint: its own if it has one, else that of the worker."""
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
