"""One encoder in the engine: texts in, one vector a text out. Knows queue and runner, no pools of blocks.

Times are seconds of time.monotonic().
"""

from __future__ import annotations

import time
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from models.batch import EncoderBatch
from models.heads import normalize, pool
from server.engine.encode_queue import EncodeQueue, EncodeRequest, Text
from server.engine.generation import NOT_FINITE, STEP_FAILED, TIMED_OUT, Events, Limits, StepFailed
from server.engine.runner import Runner
from server.engine.scheduler import shared_tokens
from server.ipc.messages import Encode, Encoded, Failed, FailureCode, Pooling, StepTiming


class Encoding:
    """The `Encode` requests of one model."""

    def __init__(self, name: str, runner: Runner, limits: Limits, max_batch_tokens: int) -> None:
        self.name = name
        self.runner = runner
        self.limits = limits
        self.max_batch_tokens = max_batch_tokens
        self.queue = EncodeQueue()

    @property
    def has_work(self) -> bool:
        return len(self.queue) > 0

    def add(self, message: Encode, events: Events) -> EncodeRequest | None:
        """Queue the texts. A request that can never run ends here, and None is returned."""
        request = EncodeRequest(message)
        code, reason = self._refusal(message)
        if reason:
            request.finished = True
            events.failed.append(Failed(message.request_id, code, reason))
            return None
        self.queue.add(request)
        return request

    def _refusal(self, message: Encode) -> tuple[FailureCode, str]:
        if not message.items:
            return "engine_error", "there are no texts"
        for item in message.items:
            if not item.token_ids or min(item.token_ids) < 0 or max(item.token_ids) >= self.limits.source_vocab_size:
                return "engine_error", f"a text is empty or outside the vocabulary of {self.limits.source_vocab_size}"
            if item.token_type_ids is not None and len(item.token_type_ids) != len(item.token_ids):
                return "engine_error", "a text has another number of token types than of tokens"
            if len(item.token_ids) > self.limits.source_tokens:
                tokens, limit = len(item.token_ids), self.limits.source_tokens
                return "request_too_large", f"a text of {tokens} tokens exceeds the limit of {limit}"
        return "engine_error", ""

    def step(self, events: Events, is_shared: bool = False) -> StepTiming | None:
        """Encode some texts if any wait; fewer when the device is shared with requests that decode.

        Raises StepFailed, its requests already told.
        """
        texts = self.queue.take(shared_tokens(self.max_batch_tokens) if is_shared else self.max_batch_tokens)
        if not texts:
            return None
        started = time.monotonic()
        try:
            values = self._run(texts)
        except Exception as error:
            for request, _ in texts:
                self.finish(request, "engine_error", events, STEP_FAILED)
            raise StepFailed from error
        for (request, index), numbers in zip(texts, values, strict=True):
            if request.finished:
                continue
            if not np.isfinite(numbers).all():
                self.finish(request, "engine_error", events, NOT_FINITE)
                continue
            events.encoded.append(Encoded(request.request_id, index, numbers.astype("<f4").tobytes()))
            request.unanswered -= 1
            if request.unanswered == 0:
                request.finished = True
        tokens = sum(len(request.message.items[index].token_ids) for request, index in texts)
        return StepTiming(self.name, "encode", time.monotonic() - started, len(texts), tokens)

    @torch.inference_mode()
    def _run(self, texts: list[Text]) -> list[np.ndarray[tuple[int], np.dtype[np.float32]]]:
        """One vector for each text: [hidden] to embed, [labels] to classify."""
        items = [request.message.items[index] for request, index in texts]
        batch = self.runner.encoder_batch([item.token_ids for item in items], [item.token_type_ids for item in items])
        hidden = self.runner.model.encode(batch)
        kinds = [_kind(request.message) for request, _ in texts]
        outcomes = {kind: self._head(kind, hidden, batch).float().cpu().numpy() for kind in dict.fromkeys(kinds)}
        return [outcomes[kind][index] for index, kind in enumerate(kinds)]

    def _head(self, kind: _Kind, hidden: Tensor, batch: EncoderBatch) -> Tensor:
        if kind is None:
            return self.runner.model.classify(hidden, batch)
        pooling, normalized = kind
        pooled = pool(hidden, batch, pooling)
        return normalize(pooled) if normalized else pooled

    def finish(
        self,
        request: EncodeRequest,
        reason: Literal["abort", "timeout", "engine_error"],
        events: Events,
        message: str = "",
    ) -> None:
        """End a request that is not answered in full; what comes second does nothing."""
        if request.finished:
            return
        request.finished = True
        self.queue.remove(request)
        if reason == "timeout":
            events.failed.append(Failed(request.request_id, "timeout", TIMED_OUT))
        elif reason == "engine_error":
            events.failed.append(Failed(request.request_id, "engine_error", message))


_Kind = tuple[Pooling, bool] | None
"""What is asked of the hidden states: pooling and normalisation, or None for the classification head."""


def _kind(message: Encode) -> _Kind:
    return None if message.task == "classify" else (message.pooling, message.normalize)
