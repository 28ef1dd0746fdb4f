"""Protocol of mixers: parts of a layer that read earlier tokens through a state of constant size.

A step computes the projections of all its tokens at once. Between them, `models.state_steps` runs each row from the
state that the engine names, in one of two forms. Tokens of a prompt run chunked, generated tokens run stepwise, also
when they are computed again. The form of a token therefore depends on its request alone.
"""

from __future__ import annotations

from typing import Protocol

from torch import Tensor

State = tuple[Tensor, ...]
"""State of one sequence, or of rows: the tensors of `state_shapes`, float32, rows in a leading dimension."""


class Mixer(Protocol):
    """The part of a layer between its input norm and its residual sum.

    state_shapes: see `models.config.state`.
    """

    @property
    def state_shapes(self) -> tuple[tuple[int, ...], ...]: ...

    def project(self, hidden: Tensor) -> Tensor:
        """Inputs of the recurrence: [tokens, hidden], model dtype -> [tokens, width]."""

    def chunked(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """Run consecutive prompt tokens of one sequence in chunks of `CHUNK_TOKENS`, the last of which may be shorter.

        projected: [tokens, width]. The first token is at a multiple of `CHUNK_TOKENS` of its sequence.
        state: state of one sequence before the first token; not changed.
        Returns [tokens, mixed width], and the state after the last token.
        Running the chunks one by one gives the same bits.
        """

    def step(self, projected: Tensor, state: State) -> tuple[Tensor, State]:
        """Run one token of each row. projected: [rows, width]. state: states of the rows; may be changed.

        Returns [rows, mixed width], and the states after the tokens. A row's result does not depend on other rows.
        """

    def output(self, mixed: Tensor, projected: Tensor) -> Tensor:
        """Output projection: [n, mixed width] and the same rows of `project` -> [n, hidden], model dtype."""
