"""Limits of captured steps, and why the steps of some decoders are not captured. Does not import triton."""

from __future__ import annotations

from typing import NamedTuple

from models.stack import Stack


class GraphSizes(NamedTuple):
    """Limits of captured steps.

    rows: largest number of rows. context: largest number of keys of a row.
    source: largest number of source tokens of a row; 0 without an encoder.
    """

    rows: int
    context: int
    source: int = 0


def why_not_captured(stack: Stack) -> str | None:
    """Why the decode steps of a stack cannot be captured; None where they can.

    While a step is captured, nothing may be read on the host, and no number may influence it except the contents of its
    input tensors. A module that cannot be captured has the reason, a text, in its attribute `not_captured`.
    """
    if stack.rotates_by_length:
        return "rotations that depend on the length of the text"
    reasons: list[str] = [getattr(module, "not_captured", "") for module in stack.modules()]
    return next((reason for reason in reasons if reason), None)
