"""Limits of captured steps, and why the steps of some stacks are not captured. Does not import triton."""

from __future__ import annotations

from typing import NamedTuple

from models.stack import Stack


class GraphSizes(NamedTuple):
    """Limits of the captured steps of a decoder.

    rows: largest number of rows. context: largest number of keys of a row.
    source: largest number of source tokens of a row; 0 without an encoder.
    tokens: largest number of tokens of a step with prefill or drafts; 0 to capture no such steps.
    keeps_states: whether steps keep hidden states of all their tokens for a draft head (`DecoderOutput.draft_states`).
    """

    rows: int
    context: int
    source: int = 0
    tokens: int = 0
    keeps_states: bool = False


class EncoderSizes(NamedTuple):
    """Limits of the captured steps of an encoder.

    tokens: largest number of tokens of a step. text_tokens: largest number of tokens of a text or recording.
    frames: number of frames of a recording, which all recordings have; 0 for an encoder of texts.
    """

    tokens: int
    text_tokens: int
    frames: int = 0


def why_not_captured(stack: Stack) -> str | None:
    """Why the steps of a stack cannot be captured; None where they can.

    While a step is captured, the host may read no tensor of the device. All values that differ between steps must come
    from the input tensors. A module that cannot be captured has the reason, a text, in its attribute `not_captured`.
    """
    if stack.rotates_by_length:
        return "rotations that depend on the length of the text"
    reasons: list[str] = [getattr(module, "not_captured", "") for module in stack.modules()]
    return next((reason for reason in reasons if reason), None)
