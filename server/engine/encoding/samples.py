"""Checks recordings, and makes batches of them for encoders that read audio samples."""

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
from server.ipc.wire.encode_messages import FLOAT_BYTES, Encode, EncodeTask
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import FailureCode


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


def samples_refusal(message: Encode, task: EncodeTask, shortest: int, longest: int) -> tuple[FailureCode, str]:
    """Why the recordings of an `Encode` are refused; an empty reason if they are accepted.

    task: the only task that is accepted.
    shortest, longest: smallest and largest number of samples of a recording.
    """
    if not message.items or message.task != task:
        return "engine_error", f"the request has no audio samples, or its task is not {task}"
    for item in message.items:
        samples, rest = divmod(len(item.samples), FLOAT_BYTES)
        if rest or not shortest <= samples <= longest:
            return (
                "engine_error",
                f"{len(item.samples)} bytes of audio; {shortest} to {longest} float32 samples are allowed",
            )
    return "engine_error", ""


def silent_generate(name: str, sequence_id: int, limits: ModelLimits, start: list[int]) -> Generate:
    """A request with a silent recording of the shortest allowed length, to warm up a model.

    start: decoder start tokens.
    """
    row = GenerateRow(sequence_id, 3, 0, start)
    params = GenerationParams(do_sample=True, top_k=5)
    return Generate(name, params, [], [row], frames=[bytes(FLOAT_BYTES * limits.min_samples)])
