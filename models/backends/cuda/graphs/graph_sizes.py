"""Which decoders run their steps as CUDA graphs, and the limits of such steps. Does not import triton."""

from __future__ import annotations

from typing import NamedTuple

from models.layers.attention import Attention
from models.layers.feed_forward import FeedForward
from models.layers.latent_attention import LatentAttention
from models.layers.layer import Layer
from models.layers.moe import FeedForwardLayer, MixtureOfExperts
from models.stack import Stack


class GraphSizes(NamedTuple):
    """Limits of captured steps.

    rows: largest number of rows. context: largest number of keys of a row.
    source: longest source; 0 without an encoder.
    """

    rows: int
    context: int
    source: int = 0


def is_capturable(stack: Stack) -> bool:
    """Whether a decode step of a stack reads nothing on the host and depends on no number but those of its rows.

    Experts that are not stacked count their tokens on the host. Mixers, rotations that depend on the text length, and
    layers of special kinds have inputs that captured steps do not have.
    """
    if stack.rotates_by_length or stack.distances is not None or stack.streams is not None:
        return False
    return all(
        type(layer) is Layer
        and layer.mixer is None
        and type(layer.attention) in (Attention, LatentAttention)
        and _is_capturable(layer.feed_forward)
        for layer in stack.layers
    )


def _is_capturable(feed_forward: FeedForwardLayer | None) -> bool:
    if isinstance(feed_forward, MixtureOfExperts):
        return feed_forward.packed is not None
    return feed_forward is None or type(feed_forward) is FeedForward
