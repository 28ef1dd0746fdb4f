"""Audio input of a speech model: computes log-mel frames of recordings, and encodes the frames of `Generate` requests.

The computed frames first go back to the HTTP process, which decides where each window of a long recording begins.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from models.layers.log_mel import HOP_SAMPLES, WINDOW_SAMPLES, LogMel
from models.steps.batch import AudioBatch
from models.steps.kv_cache import KVCache
from server.engine.device.runner import Runner, named
from server.engine.device.transformer_protocol import TransformerProtocol
from server.engine.encoding.encode_queue import QueuedItem
from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.encoding.encoder_outputs import EncoderOutput
from server.engine.encoding.samples import samples_refusal
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.descriptions import StepTokens
from server.ipc.wire.encode_messages import FLOAT_BYTES, Encode, EncodeItem
from server.ipc.wire.generate_messages import Generate, GenerateRow
from server.ipc.wire.params import GenerationParams
from server.ipc.wire.step_messages import FailureCode


class AudioRunner(Runner):
    """A `Runner` whose encoder sources are log-mel frames of audio. num_mels: values per frame."""

    def __init__(
        self, model: TransformerProtocol, device: torch.device, self_cache: KVCache, cross_cache: KVCache, num_mels: int
    ) -> None:
        super().__init__(model, device, self_cache, cross_cache)
        self.num_mels = num_mels

    def source_batch(self, groups: Sequence[SequenceGroup]) -> AudioBatch:
        """Ragged batch of the audio windows of some groups."""
        frames = [_floats(group.source_frames).view(-1, self.num_mels) for group in groups]
        adapters = named([group.adapter for group in groups])
        return AudioBatch(
            torch.cat(frames).to(self.device), tuple(len(group_frames) for group_frames in frames), adapters
        )


class LogMelEngine(EncoderEngine):
    """Answers the `log_mel` requests of one model: computes log-mel frames of audio samples. Runs no encoder."""

    def __init__(self, name: str, runner: Runner, limits: ModelLimits, step_tokens: StepTokens, num_mels: int) -> None:
        super().__init__(name, runner, limits, step_tokens)
        self._log_mel = LogMel(num_mels)

    def _refusal(self, message: Encode) -> tuple[FailureCode, str]:
        token_samples = self.limits.samples_per_token or 2 * HOP_SAMPLES
        longest = self.limits.source_tokens * token_samples + WINDOW_SAMPLES
        return samples_refusal(message, "log_mel", WINDOW_SAMPLES, longest)

    @torch.inference_mode()
    def _run(self, texts: list[QueuedItem]) -> list[EncoderOutput]:
        samples = [_floats(request.message.items[index].samples).to(self.runner.device) for request, index in texts]
        return [EncoderOutput(self._log_mel(waveform).cpu().numpy()) for waveform in samples]


def warm_up_messages(name: str, sequence_id: int, limits: ModelLimits, start: list[int]) -> tuple[Generate, Encode]:
    """A `Generate` and an `Encode` with silent audio, to warm up a model.

    sequence_id: id of the `Generate`; the `Encode` has the id `sequence_id - 1`.
    start: decoder start tokens.
    """
    params = GenerationParams(do_sample=True, top_k=5)
    item = EncodeItem([], samples=bytes(FLOAT_BYTES * WINDOW_SAMPLES))
    return (
        Generate(name, params, [], [GenerateRow(sequence_id, 3, 0, start)], frames=[bytes(limits.frame_bytes)]),
        Encode(sequence_id - 1, name, "log_mel", [item]),
    )


def _floats(values: bytes) -> Tensor:
    """The little-endian float32 values in the bytes of a message: [n], float32."""
    return torch.from_numpy(np.frombuffer(values, dtype="<f4").astype(np.float32))
