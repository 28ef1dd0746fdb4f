"""Answers the `ctc` requests of a model with a CTC head: the likeliest label of each hidden state of a recording."""

from __future__ import annotations

import torch

from models.config import SamplesEmbeddingConfig
from server.engine.device.runner import Runner
from server.engine.encoding.encode_queue import QueuedItem
from server.engine.encoding.encoder_engine import EncoderEngine
from server.engine.encoding.encoder_outputs import EncoderOutput
from server.engine.encoding.samples import samples_refusal, waveform_batch
from server.engine.scheduling.model_limits import ModelLimits
from server.ipc.wire.descriptions import StepTokens
from server.ipc.wire.encode_messages import FLOAT_BYTES, Encode, EncodeItem
from server.ipc.wire.step_messages import FailureCode


class CtcEngine(EncoderEngine):
    """Computes the labels of recordings for the `ctc` requests of one model.

    A recording is one item. Its labels do not depend on other items of the step.

    embedding: determines how many labels a recording of a given length has.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        limits: ModelLimits,
        step_tokens: StepTokens,
        embedding: SamplesEmbeddingConfig,
    ) -> None:
        super().__init__(name, runner, limits, step_tokens)
        self._embedding = embedding

    def _refusal(self, message: Encode) -> tuple[FailureCode, str]:
        shortest, longest = self._embedding.min_samples, self.limits.source_tokens * self._embedding.samples_per_token
        return samples_refusal(message, "ctc", shortest, longest)

    @torch.inference_mode()
    def _run(self, texts: list[QueuedItem]) -> list[EncoderOutput]:
        recordings = [request.message.items[index].samples for request, index in texts]
        adapters = [request.adapter for request, _ in texts]
        batch = waveform_batch(recordings, self._embedding, self.runner.device, adapters)
        hidden = self.runner.model.encode(batch)
        logits = self.runner.model.classify_tokens(hidden, batch)
        best = torch.log_softmax(logits, -1).max(-1)
        values, labels = (torch.split(found.cpu(), list(batch.lengths)) for found in best)
        return [
            EncoderOutput(logprobs[:, None].numpy(), token_ids.tolist())
            for logprobs, token_ids in zip(values, labels, strict=True)
        ]


def silence(samples: int) -> EncodeItem:
    """An item with a silent recording, to warm up a model. samples: length of the recording in samples."""
    return EncodeItem([], samples=bytes(FLOAT_BYTES * samples))
