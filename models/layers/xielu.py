"""Feed-forward network with the activation xIELU, which has learned parameters."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional as F

from models.backends.choice import backend
from models.backends.operands import XieluShape
from models.config import XieluFeedForwardConfig
from models.layers.linear import Linear, parameter


class Xielu(nn.Module):
    """The activation xIELU: `a * x ** 2 + beta * x` above zero, else `b * (expm1(min(x, eps)) - x) + beta * x`.

    alpha_p, alpha_n: [1], model dtype: a is `softplus(alpha_p)`, b is `beta + softplus(alpha_n)`.
    beta, eps: [1], model dtype.
    forward: [tokens, width] -> [tokens, width], model dtype.
    not_captured: why a decode step with this activation cannot be captured as a CUDA graph.
    Source: Huang and Schlag 2024, arXiv:2411.13010, section 4.
    """

    not_captured = "an activation whose shape the host reads"

    def __init__(self) -> None:
        super().__init__()
        self.alpha_p, self.alpha_n, self.beta, self.eps = (parameter(1) for _ in range(4))
        self._shape: XieluShape | None = None

    def forward(self, x: Tensor) -> Tensor:
        if self._shape is None:
            beta, eps = float(self.beta), float(self.eps)
            rising, falling = (float(F.softplus(alpha.float())) for alpha in (self.alpha_p, self.alpha_n))
            self._shape = XieluShape(rising, beta + falling, beta, eps)
        return backend(x).xielu(x, self._shape)


class XieluFeedForward(nn.Module):
    """Position-wise feed-forward network `down(xielu(up(x)))`.

    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    """

    def __init__(self, config: XieluFeedForwardConfig, hidden_size: int) -> None:
        super().__init__()
        self.up = Linear(hidden_size, config.intermediate_size, config.bias)
        self.activation = Xielu()
        self.down = Linear(config.intermediate_size, hidden_size, config.bias)

    def forward(self, x: Tensor) -> Tensor:
        output: Tensor = self.down(self.activation(self.up(x)))
        return output
