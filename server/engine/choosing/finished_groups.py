"""The result of a sequence group that has ended: hypotheses, attention weights, and durations."""

from __future__ import annotations

from msgspec.structs import replace

from server.engine.beams.running_beams import Beam
from server.engine.device.runner import Runner
from server.engine.sequences.sequence import SequenceGroup
from server.ipc.wire.logprobs import pack
from server.ipc.wire.messages import Finished, FinishReason, Hypothesis


def hypotheses_of(group: SequenceGroup, reason: FinishReason) -> list[Hypothesis]:
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


def with_attention(
    runner: Runner, group: SequenceGroup, hypotheses: list[Hypothesis], source_blocks: list[int]
) -> list[Hypothesis]:
    """The hypotheses, with attention weights if the request asks for them. Hypotheses without tokens get none.

    source_blocks: cross-attention blocks of the group. They still have the keys and values of its source.
    """
    if not group.has_attention and group.params.alignment is None:
        return hypotheses
    return [
        replace(hypothesis, attention=_attention(runner, group, hypothesis.token_ids, source_blocks))
        if hypothesis.token_ids
        else hypothesis
        for hypothesis in hypotheses
    ]


def _attention(runner: Runner, group: SequenceGroup, made: list[int], source_blocks: list[int]) -> bytes:
    """Attention weights of a hypothesis, as bytes. made: its generated tokens."""
    start = group.sequences[0].tokens[: group.num_prompt_tokens]
    alignment = group.params.alignment
    if alignment is None:
        return runner.align(group.source_token_ids, start + made, len(made), group.adapter)
    return runner.align_speech(
        source_blocks,
        group.num_source_tokens,
        group.recorded_tokens,
        start + made,
        len(made) - 1,
        alignment,
        group.adapter,
    )


def result_of(group: SequenceGroup, hypotheses: list[Hypothesis], now: float) -> Finished:
    """The message to send about a group that ended now. now: seconds of time.monotonic()."""
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
