"""Makes batches of recordings for encoders that read audio samples, in `Encode` and in `Generate` requests."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from models.config import SamplesEmbeddingConfig
from models.steps.batch import WaveformBatch
from models.steps.kv_cache import KVCache
from server.engine.device.runner import Runner, named
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.messages import FLOAT_BYTES, Generate, GenerateRow
from server.ipc.wire.params import GenerationParams


class SamplesRunner(Runner):
    """A `Runner` whose encoder sources are audio samples.

    embedding: determines how many hidden states a recording of a given length has.
    """

    def __init__(
        self,
        model: TransformerProtocol,
        device: torch.device,
        self_cache: KVCache,
        cross_cache: KVCache,
        embedding: SamplesEmbeddingConfig,
    ) -> None:
        super().__init__(model, device, self_cache, cross_cache)
        self._embedding = embedding

    def source_batch(self, groups: Sequence[SequenceGroup]) -> WaveformBatch:
        """Ragged batch of the recordings of some groups."""
        recordings = [group.source_frames for group in groups]
        return waveform_batch(recordings, self._embedding, self.device, [group.adapter for group in groups])


def waveform_batch(
    recordings: Sequence[bytes], embedding: SamplesEmbeddingConfig, device: torch.device, adapters: Sequence[str]
) -> WaveformBatch:
    """Ragged batch of recordings.

    recordings: samples of each recording, float32, little-endian.
    adapters: adapter name for each recording; empty for a recording without adapter.
    """
    parts = [np.frombuffer(recording, dtype="<f4") for recording in recordings]
    lengths = tuple(map(len, parts))
    samples = torch.from_numpy(np.concatenate(parts).astype(np.float32, copy=False))
    return WaveformBatch(samples.to(device), lengths, tuple(map(embedding.num_tokens, lengths)), named(adapters))


def silent_generate(name: str, sequence_id: int, limits: ModelLimits, start: list[int]) -> Generate:
    """A request with a silent recording of the shortest allowed length, to warm up a model.

    start: decoder start tokens.
    """
    row = GenerateRow(sequence_id, 3, 0, start)
    params = GenerationParams(do_sample=True, top_k=5)
    return Generate(name, params, [], [row], frames=[bytes(FLOAT_BYTES * limits.min_samples)])
