"""The feed-forward sublayer of a layer."""

from __future__ import annotations

from statistics import NormalDist

from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.linear_weights import LinearPacker, LinearWeight
from models.backends.torch.activations import activate
from models.config import FeedForwardConfig
from models.layers.linear import Linear, concatenate


class FeedForward(nn.Module):
    """Position-wise feed-forward network: `down(act(up(x)))`, or `down(act(gate(x)) * up(x))` when gated.

    With a limit, an offset or sparsity in the configuration, gate and up change before they are multiplied. Such a
    feed-forward is never part of a compiled program.

    merged: weight of gate and up as one product, after `merge`; or None.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    Source of the gated form: Shazeer 2020, arXiv:2002.05202.
    """

    def __init__(self, config: FeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.config, self.activation = config, config.activation
        inner_bias = config.bias if config.inner_bias is None else config.inner_bias
        self.gate = Linear(hidden_size, config.intermediate_size, inner_bias) if config.gated else None
        self.up = Linear(hidden_size, config.intermediate_size, inner_bias)
        self.down = Linear(config.intermediate_size, hidden_size, config.bias)
        self.merged: LinearWeight | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self.merged is not None:
            gate, up = self.merged.multiply(x).chunk(2, -1)
            inner = backend(gate).gated_activation(gate, up, self.activation)
        elif self.gate is None:
            inner = self.up(x, self.activation)
        elif self.config.is_clipped:
            inner = self._clipped(self.gate(x), self.up(x))
        elif self.config.gate_scale != 1.0:
            gate = self.gate(x)
            gate = backend(gate).scaled_activation(gate, self.config.gate_scale, self.activation)
            inner = self.up(x, multiplier=gate)
        else:
            inner = self.up(x, multiplier=self.gate(x, self.activation))
        output: Tensor = self.down(inner)
        return output

    def _clipped(self, gate: Tensor, up: Tensor) -> Tensor:
        """Make the gate sparse and clip gate and up, as configured, then return `act(gate) * (up + up_offset)`.

        gate, up: [tokens, intermediate].
        """
        limit, sparsity = self.config.limit, self.config.sparsity
        if sparsity > 0:
            spread = NormalDist().inv_cdf(sparsity) * gate.std(-1, keepdim=True, unbiased=False)
            gate = (gate - (gate.mean(-1, keepdim=True) + spread)).relu()
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return activate(gate, self.activation) * (up + self.config.up_offset)

    def merge(self, packer: LinearPacker) -> None:
        """Join the matrices of gate and up, so that one product computes both.

        Does nothing without a gate, if the configuration clips, shifts, scales or sparsifies gate or up, or if the two
        matrices cannot be joined (`concatenate`).
        """
        if self.gate is None or self.config.is_clipped or self.config.gate_scale != 1.0 or self.merged is not None:
            return
        if self.gate.packed is not None or (joined := concatenate([self.gate, self.up])) is None:
            return
        self.merged = packer(*joined)
        width = self.config.intermediate_size
        for linear, first in ((self.gate, 0), (self.up, width)):
            part = self.merged.slice(first, first + width)
            assert part is not None
            linear.use_packed(part)

    def pack(self, first_packer: LinearPacker, packer: LinearPacker, last_packer: LinearPacker) -> None:
        """Pack the weights of the network, which replaces its dense or quantised weights.

        first_packer: packs the product before the activation: the gate, or the only first product.
        packer: packs the values that the gate multiplies. last_packer: packs the last product.
        """
        if self.gate is None:
            self.up.pack(first_packer)
        else:
            self.gate.pack(first_packer)
            self.up.pack(packer)
        self.down.pack(last_packer)
