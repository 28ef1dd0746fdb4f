"""The results of the sequence groups that have ended: hypotheses, attention weights, and durations."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from server.engine.beams.running_beams import Beam
from server.engine.choosing.alignment_queue import AlignmentQueue, EndedGroup
from server.engine.device.runner import Runner
from server.engine.sequences.events import EngineEvents
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.generate_messages import Finished, FinishReason, Hypothesis
from server.ipc.wire.logprobs import pack
from server.ipc.wire.step_messages import Failed

log = logging.getLogger("triptych.engine")

ATTENTION_FAILED = "the attention of the answer could not be computed"


class FinishedGroups:
    """The ended groups of one model. Records their results, or first computes their attention weights.

    An error while the attention weights are computed fails these groups only.

    runner: computes the attention weights.
    """

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._queue = AlignmentQueue()

    def __len__(self) -> int:
        """Number of groups whose attention weights are not computed yet."""
        return len(self._queue)

    def add(self, group: SequenceGroup, reason: FinishReason, source_blocks: list[int], events: EngineEvents) -> None:
        """Record the result of a group, or queue the group if attention weights must be computed in a batch.

        reason: why the group ended.
        source_blocks: cross-attention blocks of the group, already free. They keep their contents until the next step.
        """
        hypotheses = _hypotheses_of(group, reason)
        if group.has_attention:
            self._queue.add(group, hypotheses)
        elif group.params.alignment is not None:
            self._record_speech(group, hypotheses, source_blocks, events)
        else:
            events.finished.append(_result_of(group, hypotheses, time.monotonic()))

    def drop(self, group: SequenceGroup) -> None:
        """Drop a group whose result is not needed any more. No effect if its result is recorded."""
        self._queue.drop(group)

    def align(self, active: Iterable[SequenceGroup], events: EngineEvents) -> None:
        """Compute the attention weights of the next batch, if it is due, and record its results. Called in each step.

        active: the groups that are running or queued.
        """
        if self._queue:
            self._record(self._queue.take(active), events)

    def _record(self, ended: Sequence[EndedGroup], events: EngineEvents) -> None:
        """Compute the attention weights of groups with one adapter, and record their results.

        If the weights cannot be computed for all groups together, each group is tried alone. A group whose weights
        raise an error or are not finite is recorded as failed.
        """
        if not ended:
            return
        try:
            found = _with_attention(self._runner, ended)
        except Exception:
            if len(ended) > 1:
                for own in ended:
                    self._record([own], events)
            else:
                _fail(ended[0].group, events)
            return
        for own, hypotheses in zip(ended, found, strict=True):
            if hypotheses is None:
                events.failed.append(Failed(own.group.sequence_id, "engine_error", ATTENTION_FAILED))
            else:
                events.finished.append(_result_of(own.group, hypotheses, time.monotonic()))

    def _record_speech(
        self, group: SequenceGroup, hypotheses: list[Hypothesis], source_blocks: list[int], events: EngineEvents
    ) -> None:
        """Compute the attention weights from which token times are found, and record the result.

        source_blocks: cross-attention blocks of the group. They still have the keys and values of its source.
        """
        try:
            hypotheses = _with_speech_attention(self._runner, group, hypotheses, source_blocks)
        except Exception:
            _fail(group, events)
        else:
            events.finished.append(_result_of(group, hypotheses, time.monotonic()))


def _fail(group: SequenceGroup, events: EngineEvents) -> None:
    log.exception("computing the attention of request %s failed", group.sequence_id)
    events.failed.append(Failed(group.sequence_id, "engine_error", ATTENTION_FAILED))


def _with_attention(runner: Runner, ended: Sequence[EndedGroup]) -> list[list[Hypothesis] | None]:
    """The hypotheses of ended groups with one adapter, with attention weights. Hypotheses without tokens get none.

    Returns None for a group with a weight that is not finite.
    """
    texts = [(group.group, hypothesis) for group in ended for hypothesis in group.hypotheses if hypothesis.token_ids]
    if not texts:
        return [group.hypotheses for group in ended]
    starts = [group.sequences[0].tokens[: group.num_prompt_tokens] for group, _ in texts]
    weights = iter(
        runner.align(
            [group for group, _ in texts],
            [start + hypothesis.token_ids for start, (_, hypothesis) in zip(starts, texts, strict=True)],
            [len(hypothesis.token_ids) for _, hypothesis in texts],
        )
    )
    found: list[list[Hypothesis] | None] = []
    for group in ended:
        own = [
            replace(hypothesis, attention=next(weights)) if hypothesis.token_ids else hypothesis
            for hypothesis in group.hypotheses
        ]
        is_finite = all(hypothesis.attention is not None for hypothesis in own if hypothesis.token_ids)
        found.append(own if is_finite else None)
    return found


def _with_speech_attention(
    runner: Runner, group: SequenceGroup, hypotheses: list[Hypothesis], source_blocks: list[int]
) -> list[Hypothesis]:
    return [
        replace(hypothesis, attention=_speech_attention(runner, group, hypothesis.token_ids, source_blocks))
        if hypothesis.token_ids
        else hypothesis
        for hypothesis in hypotheses
    ]


def _speech_attention(runner: Runner, group: SequenceGroup, made: list[int], source_blocks: list[int]) -> bytes:
    """Attention weights of a hypothesis: bytes of float32, little-endian, [generated tokens - 1, recorded positions].

    made: generated tokens of the hypothesis. Recorded positions are source positions that belong to the recording, not
        to padding.
    """
    start = group.sequences[0].tokens[: group.num_prompt_tokens]
    assert group.params.alignment is not None, "only speech models have selected heads"
    return runner.align_speech(
        source_blocks,
        group.num_source_tokens,
        group.recorded_tokens,
        start + made,
        len(made) - 1,
        group.params.alignment,
        group.adapter,
    )


def _result_of(group: SequenceGroup, hypotheses: list[Hypothesis], now: float) -> Finished:
    """The message to send about a group that has ended: hypotheses and durations.

    now: when the group ended, in seconds of `time.monotonic()`.
    """
    scheduled = group.first_scheduled if group.first_scheduled is not None else now
    first_token = group.first_token if group.first_token is not None else now
    return Finished(
        group.sequence_id,
        hypotheses,
        queue_seconds=scheduled - group.arrival,
        prefill_seconds=first_token - scheduled,
        decode_seconds=now - first_token,
        cached_tokens=group.cached_tokens or 0,
        probe_logprob=group.probe_logprob,
    )


def _hypotheses_of(group: SequenceGroup, reason: FinishReason) -> list[Hypothesis]:
    """The hypotheses of a group: its generated text, or the best texts of its beam search.

    reason: why the group ended.
    """
    if group.beams is None:
        tokens = group.sequences[0].tokens[group.num_prompt_tokens :]
        return [_hypothesis(group, Beam(tokens, logprobs=group.logprobs), None, reason)]
    beams = group.beams.hypotheses(group.params.num_return_sequences)
    return [_hypothesis(group, beam, float(beam.score), reason) for beam in beams]


def _hypothesis(group: SequenceGroup, beam: Beam, score: float | None, reason: FinishReason) -> Hypothesis:
    logprobs = pack(beam.logprobs) if group.params.logprobs else None
    # A beam search that a deadline has stopped might still have found a better text. Its ended texts therefore have the
    # deadline as their reason.
    ended: FinishReason = "timeout" if reason == "timeout" else "stop"
    if beam.tokens and beam.tokens[-1] in group.end_ids:
        return Hypothesis(beam.tokens, ended, beam.tokens[-1], score, logprobs)
    if beam.tokens and group.beams is not None and group.beams.ends(beam.tokens[:-1], beam.tokens[-1]):
        return Hypothesis(beam.tokens, ended, None, score, logprobs)
    return Hypothesis(beam.tokens, reason, None, score, logprobs)
