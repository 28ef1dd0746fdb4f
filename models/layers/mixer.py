"""The common protocol of mixers: parts of a layer that read earlier tokens through a state of constant size."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from torch import Tensor, nn

from models.backends.linear_weights import LinearPacker
from models.config import MixerConfig

Projections = tuple[Tensor, ...]
"""Results of the input projections for some tokens: tensors [tokens, ...], model dtype."""


class Mixer(nn.Module, ABC):
    """Base class of mixers: parts of a layer that keep a state of constant size per text.

    `StepInputs.mix` calls `project` with all tokens of a step, then `chunked` and `step` with the tokens of each row
    (`models.steps.state_steps`), then `finish` with the output rows. The states are float32 and are updated in place.
    The state of a new text is zero.

    The results of `chunked` and `step` for the same tokens are equal up to rounding. To make results independent of how
    a prompt is divided into steps, prompts are divided at multiples of `CHUNK_TOKENS` only. Tokens of a prompt always
    use `chunked`, and generated tokens always use `step`. The bits of a row do not depend on other rows.

    config: configuration of the mixer; `config.state_shapes` are the shapes of the tensors that form one state.
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
        """Mix one token of each row into the state of the row.

        projections: input projections of one token per row.
        states: memory of the states of many texts: [slots, *shape] for each of `config.state_shapes`, float32.
        slots: [rows], int64: the slot of each row's state, which is updated in place. No slot occurs twice.
        Returns [rows, width], model dtype.
        """

    @abstractmethod
    def finish(self, mixed: Tensor, projections: Projections) -> Tensor:
        """Apply gate, norm and output projection.

        mixed: [n, width], model dtype, result of `chunked` or `step`. projections: input projections of the same
            tokens.
        Returns [n, hidden], model dtype.
        """

    @abstractmethod
    def pack(self, packer: LinearPacker, gate_packer: LinearPacker) -> None:
        """Replace the weights of linears by packed weights.

        packer: packs large matrices. gate_packer: packs small matrices, without quantisation.
        """
