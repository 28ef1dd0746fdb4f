"""Captures the steps of a model as CUDA graphs: encoder steps, steps with prefill, decode steps, and steps of beams.

Also captures the passes of its draft head.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import torch

from models.backends import fixed_order
from models.backends.cuda.graphs import graph_runner
from models.backends.cuda.graphs.captures import CaptureTime
from models.backends.cuda.graphs.graph_sizes import EncoderSizes, GraphSizes
from models.draft_head import DraftHead
from models.steps.kv_cache import KVCache
from server.engine.device.captured_searches import CapturedSearches
from server.engine.device.captured_steps import CapturedSteps
from server.engine.device.transformer_protocol import TransformerProtocol

if TYPE_CHECKING:
    from models.backends.cuda.graphs.encoder_graphs import EncoderGraphs
    from models.backends.cuda.graphs.head_graphs import HeadGraphs
    from models.backends.cuda.graphs.recording_graphs import RecordingGraphs

    CapturedEncoder = EncoderGraphs | RecordingGraphs

log = logging.getLogger("triptych.engine")

Part = Literal["encoder steps", "prefill", "decode steps", "beam searches", "drafts"]
"""A kind of steps of a model, or the passes of its drafter. All of a kind run as CUDA graphs, or all run eagerly."""
Captured = TypeVar("Captured")

REFUSED = "CUDA refuses to capture them, see the log"


class CapturedParts(NamedTuple):
    """Captured steps of a model; None for each kind of steps that runs eagerly.

    reasons: for each kind of steps that should have been captured but runs eagerly, the reason.
    """

    decoder: CapturedSteps | None
    searches: CapturedSearches | None
    encoder: CapturedEncoder | None
    reasons: dict[Part, str]


def capture_parts(
    model: TransformerProtocol,
    device: torch.device,
    caches: tuple[KVCache | None, KVCache | None],
    decoder: GraphSizes | None,
    encoder: EncoderSizes | None,
    time: CaptureTime | None,
) -> CapturedParts:
    """Capture the steps of a model, if the device and the model allow it.

    caches: KV caches of self-attention and of cross-attention; None in place of a cache that the model does not have.
    decoder, encoder: limits of decoder steps and of encoder steps; None to capture none.
    time: limits how many graphs are captured; None for the default limit.
    """
    reasons: dict[Part, str] = {}
    (cache, cross_cache), time = caches, time or CaptureTime()

    def attempt(part: Part, capture: Callable[[], Captured]) -> Captured | None:
        return _attempt(part, capture, reasons)

    if decoder is not None and cache is not None and (reason := model.why_not_captured()) is not None:
        reasons["prefill"] = reasons["decode steps"] = reason
    if encoder is not None and (reason := model.why_encoder_not_captured()) is not None:
        reasons["encoder steps"] = reason
    has_encoder = encoder is not None and "encoder steps" not in reasons
    has_decoder = decoder is not None and cache is not None and "decode steps" not in reasons
    if not (has_encoder or has_decoder):
        return CapturedParts(None, None, None, reasons)
    # All graphs share the memory of one runner. The largest steps come first, so that the others fit into it.
    runner = graph_runner.make_runner(device)
    encoder_graphs, captured, searches = None, None, None
    if encoder is not None and has_encoder:
        encoder_graphs = attempt("encoder steps", lambda: model.capture_encoder(cross_cache, encoder, runner, time))
    if decoder is not None and cache is not None and has_decoder:
        mixed = attempt("prefill", lambda: model.capture_mixed_steps(cache, cross_cache, decoder, runner, time))
        steps = attempt("decode steps", lambda: model.capture_steps(cache, cross_cache, decoder, runner, time))
        if steps is not None:
            captured = CapturedSteps(steps, mixed, cache.block_size, cross_cache is not None)
        if decoder.rows > 1 and (reason := _why_no_searches(cache)) is not None:
            reasons["beam searches"] = reason
        elif decoder.rows > 1 and steps is not None:
            # The import needs triton, which devices without graphs do not have.
            from models.backends.cuda.graphs.beam_graphs import BeamGraphs

            beams = attempt("beam searches", lambda: BeamGraphs(steps, time))
            searches = None if beams is None else CapturedSearches(beams, cache.block_size, cross_cache is not None)
    return CapturedParts(captured, searches, encoder_graphs, reasons)


def capture_head(
    head: DraftHead, cache: KVCache, limits: GraphSizes, time: CaptureTime
) -> tuple[HeadGraphs | None, dict[Part, str]]:
    """Capture the passes of a draft head.

    cache: cache of the head. limits: limits of the passes. time: limits how many graphs are captured.
    Returns the captured passes, and the reason if they run eagerly.
    """
    if (reason := head.why_not_captured()) is not None:
        return None, {"drafts": reason}
    reasons: dict[Part, str] = {}
    runner = graph_runner.make_runner(head.device)
    return _attempt("drafts", lambda: head.capture_passes(cache, limits, runner, time), reasons), reasons


def _attempt(part: Part, capture: Callable[[], Captured], reasons: dict[Part, str]) -> Captured | None:
    """Capture one part. If CUDA refuses, the part runs eagerly, and the others are captured nevertheless.

    reasons: gets the reason if the part runs eagerly.
    """
    try:
        return capture()
    except RuntimeError:
        log.exception("%s cannot be captured as CUDA graphs", part)
        reasons[part] = REFUSED
        return None


def _why_no_searches(cache: KVCache) -> str | None:
    """Why no steps with beam searches are captured; None if they can be. cache: keys and values of self-attention."""
    if cache.is_rounded:
        # The scales of rounded slots are not stored in the order of slots, so a table of slots cannot name them.
        return "a KV cache of 8 bits"
    return "--batch-invariant" if fixed_order.enabled else None
