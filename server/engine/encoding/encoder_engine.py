"""Runs the encoder requests of one model: vectors or logits of texts. Times are seconds of `time.monotonic()`."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from models.layers.sentence_head import SentenceHead
from models.layers.token_heads import TokenHeads
from server.engine.device.runner import Runner
from server.engine.encoding.encode_queue import EncodeQueue, EncodeRequest, QueuedItem
from server.engine.encoding.encoder_outputs import EncoderOutput, encoder_outputs
from server.engine.encoding.token_outputs import problem_of
from server.engine.scheduling.encoder_budget import LongSteps, max_encoder_tokens
from server.engine.scheduling.model_limits import ModelLimits
from server.engine.scheduling.prefill_budget import shared_tokens
from server.engine.scheduling.token_costs import TokenCosts
from server.engine.sequences.events import NOT_FINITE, STEP_FAILED, TIMED_OUT, EngineEvents, StepFailed
from server.ipc.wire.descriptions import StepTokens
from server.ipc.wire.encode_messages import Encode, Encoded, EncodeItem
from server.ipc.wire.step_messages import Failed, FailureCode, StepTiming

HEAD_TASKS = frozenset({"late_interaction", "max_sim", "labelled_spans", "labelled_classes", "answer_logits"})
"""Tasks that need a head which only some checkpoints have."""


class EncoderEngine:
    """Queues and computes the `Encode` requests of one model.

    name: name of the model. runner: computes hidden states. limits: limits of the model.
    step_tokens: largest number of tokens of a step.
    sentence: pooling and dense layers of the checkpoint for one vector per text; None means mean pooling.
    heads: heads of the checkpoint for other results than one vector per text; None if it has no such head.
    """

    def __init__(
        self,
        name: str,
        runner: Runner,
        limits: ModelLimits,
        step_tokens: StepTokens,
        sentence: SentenceHead | None = None,
        heads: TokenHeads | None = None,
    ) -> None:
        self.name = name
        self.runner = runner
        self.limits = limits
        self.sentence = sentence
        self.heads = TokenHeads() if heads is None else heads
        self.max_tokens = step_tokens.encode
        self.max_shared_tokens = min(shared_tokens(step_tokens.batch), step_tokens.encode)
        self.queue = EncodeQueue()
        self._long_steps = LongSteps()
        self._costs = TokenCosts(has_fixed_part=runner.device.type == "cuda")

    def learn_step_times_again(self) -> None:
        """Forget the durations of all steps so far, because later steps will have other durations."""
        self._costs = TokenCosts(has_fixed_part=self.runner.device.type == "cuda")
        self._long_steps = LongSteps()

    @property
    def has_work(self) -> bool:
        return len(self.queue) > 0

    @property
    def step_seconds(self) -> float:
        """Seconds after which the step in progress counts as stuck. May be read from another thread."""
        return self._long_steps.most_seconds

    def add(self, message: Encode, events: EngineEvents) -> list[EncodeRequest]:
        """Queue the items of a message. Returns a list with the queued request.

        An invalid message fails immediately: the failure is added to `events`, and the list is empty.
        """
        request = EncodeRequest(message, message.model if message.model != self.name else "")
        code, reason = self._refusal(message)
        if reason:
            request.finished = True
            events.failed.append(Failed(message.sequence_id, code, reason))
            return []
        self.queue.add(request)
        return [request]

    def _refusal(self, message: Encode) -> tuple[FailureCode, str]:
        if not message.items:
            return "engine_error", "the request has no texts"
        for item in message.items:
            if not item.token_ids or min(item.token_ids) < 0 or max(item.token_ids) >= self.limits.source_vocab_size:
                return "engine_error", f"a text is empty or outside the vocabulary of {self.limits.source_vocab_size}"
            if item.token_type_ids is not None and len(item.token_type_ids) != len(item.token_ids):
                return "engine_error", "the number of token types differs from the number of tokens"
            # A tokenizer may state types that its model lacks. They would end the step of all its texts.
            if (types := self.limits.token_types) and not all(0 <= kind < types for kind in item.token_type_ids or ()):
                return "engine_error", f"a text has a token type outside the {types} types of the model"
            if message.task == "fill_mask" and item.mask_index not in range(len(item.token_ids)):
                return "engine_error", "mask_index is outside of the text"
            if message.task == "embed_spans" and not _are_spans(item):
                return "engine_error", "a span is empty or outside of the text, or there are none"
            if len(item.token_ids) > self.limits.source_tokens:
                tokens, limit = len(item.token_ids), self.limits.source_tokens
                return "request_too_large", f"a text of {tokens} tokens exceeds the limit of {limit}"
            if not 0 <= item.attended_tokens <= len(item.token_ids):
                return "engine_error", "the number of attended tokens is more than the text has"
        if message.task in HEAD_TASKS and (problem := problem_of(message, self.heads.tasks)):
            return "engine_error", problem
        if message.top_k < 1 or not all(0 <= word < self.limits.source_vocab_size for word in message.target_ids):
            return "engine_error", "top_k is below 1 or a target id is outside the vocabulary"
        return "engine_error", ""

    def step(
        self, events: EngineEvents, is_shared: bool = False, decode_seconds: float | None = None
    ) -> StepTiming | None:
        """Encode the next items, if any wait.

        is_shared: whether a decoder runs on the same device, so that the step must be short.
        decode_seconds: duration of a step of that decoder (`encoder_budget.delayed_seconds`); None if not known.
        Returns the duration and size of the step, or None if no item waits.
        Raises StepFailed if the step raises an error. Its requests have then failed.
        """
        most = self._max_step_tokens(decode_seconds) if is_shared else self._long_steps.tokens(self.max_tokens)
        texts = self.queue.take(most)
        if not texts:
            return None
        tokens = sum(request.message.items[index].num_tokens for request, index in texts)
        started = time.monotonic()
        if self._long_steps.is_long(tokens) and events.report is not None:
            events.report(list(dict.fromkeys(queued.sequence_id for queued, _ in texts)))
        else:
            events.starts(
                [(queued.sequence_id, queued.message.start_deadline) for queued, index in texts if index == 0], started
            )
        try:
            with self._long_steps.computing(tokens):
                outputs = self._run(texts)
        except Exception as error:
            for request, _ in texts:
                self.finish(request, "engine_error", events, STEP_FAILED)
            raise StepFailed from error
        for (request, index), output in zip(texts, outputs, strict=True):
            if request.finished:
                continue
            if not np.isfinite(output.values).all():
                self.finish(request, "engine_error", events, NOT_FINITE)
                continue
            values = output.values.astype("<f4", copy=False).tobytes()
            events.encoded.append(Encoded(request.sequence_id, index, values, len(output.values), output.token_ids))
            request.unanswered -= 1
            if request.unanswered == 0:
                request.finished = True
        seconds = time.monotonic() - started
        self._long_steps.observe(tokens, seconds)
        if is_shared:
            self._costs.observe(tokens, seconds)
        return StepTiming(self.name, "encode", seconds, len(texts), tokens)

    def _max_step_tokens(self, decode_seconds: float | None) -> int:
        """Largest number of tokens in a step that delays running streams of a decoder.

        decode_seconds: duration of a step of the decoder (`encoder_budget.delayed_seconds`); None if not known.
        """
        return max_encoder_tokens(self._costs, decode_seconds, self.max_shared_tokens, self.max_tokens)

    @torch.inference_mode()
    def _run(self, texts: list[QueuedItem]) -> list[EncoderOutput]:
        """Compute the texts of one step, and return the output of each."""
        asked = [(request.message, request.message.items[index]) for request, index in texts]
        batch = self.runner.encoder_batch(
            [item.token_ids for _, item in asked],
            [item.token_type_ids for _, item in asked],
            [request.adapter for request, _ in texts],
        )
        if any(item.attended_tokens for _, item in asked):
            attended = tuple(item.attended_tokens or len(item.token_ids) for _, item in asked)
            batch = replace(batch, attended=attended)
        return encoder_outputs(self.runner.model, self.runner.encode, self.sentence, self.heads, asked, batch)

    def finish(
        self,
        request: EncodeRequest,
        reason: Literal["abort", "timeout", "engine_error"],
        events: EngineEvents,
        message: str = "",
    ) -> None:
        """End a request before all its items are done. Does nothing if the request has ended.

        reason: an abort adds no event; a timeout or an error adds a failure to `events`.
        message: text of the failure, for an error only.
        """
        if request.finished:
            return
        request.finished = True
        self.queue.remove(request)
        if reason == "timeout":
            events.failed.append(Failed(request.sequence_id, "timeout", TIMED_OUT))
        elif reason == "engine_error":
            events.failed.append(Failed(request.sequence_id, "engine_error", message))


def _are_spans(item: EncodeItem) -> bool:
    """Whether the spans of an item are valid: there is at least one, and each has at least one token of the text."""
    return bool(item.spans) and all(0 <= first < end <= len(item.token_ids) for first, end in item.spans)
