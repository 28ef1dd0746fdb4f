"""The common protocol of mixers: parts of a layer that read earlier tokens through a state of constant size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from models.backends.linear_weights import LinearPacker
from models.config import MixerConfig

Projections = tuple[Tensor, ...]
"""The projections of some tokens: tensors [tokens, ...], model dtype."""


class Mixer(nn.Module, ABC):
    """A part of a layer with one state per text.

    `StepInputs.mix` calls `project` with all tokens of a step, then `chunked` and `step` with the tokens of each row
    (`models.steps.state_steps`), then `finish` with the output rows. The states are float32 and are updated in place; a
    text begins with zeros.

    A text passes through `chunked` or `step` with the same results up to rounding. To make the results independent of
    how a prompt is divided into steps, a prompt is divided at multiples of `CHUNK_TOKENS` only, its tokens always pass
    through `chunked`, and generated tokens always pass through `step`. No row changes a bit of another one.

    config: `config.state_shapes` are the shapes of the tensors of one state.
    width: width of the result before the output projection.
    not_captured: why a decode step with this part cannot be captured as a CUDA graph.
    """

    not_captured = "mixers, whose states the host chooses"
    config: MixerConfig
    width: int

    @abstractmethod
    def project(self, hidden: Tensor) -> Projections:
        """Apply the input projections. hidden: [tokens, hidden], model dtype."""

    @abstractmethod
    def chunked(self, projections: Projections, state: Sequence[Tensor]) -> Tensor:
        """Mix consecutive tokens of one text, chunk by chunk.

        projections: input projections of the tokens. The position of the first token is a multiple of `CHUNK_TOKENS`.
        state: the tensors of the text's state, float32, updated in place.
        Returns [tokens, width], model dtype.
        """

    @abstractmethod
    def step(self, projections: Projections, states: Sequence[Tensor], slots: Tensor) -> Tensor:
        """Mix one token of each row.

        projections: input projections of one token per row.
        states: memory of the states of many texts: [slots, *shape] for each of `config.state_shapes`, float32.
        slots: [rows], int64: the slot of each row's state, which is updated in place. No slot occurs twice.
        Returns [rows, width], model dtype.
        """

    @abstractmethod
    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        """Apply gate, norm and output projection.

        mixed: [n, width], model dtype. projections: of the same tokens.
        Returns [n, hidden], model dtype.
        """

    @abstractmethod
    def pack(self, packer: LinearPacker, gate_packer: LinearPacker) -> None:
        """Replace the weights of linears by packed ones. gate_packer: packs small matrices, without quantisation."""
