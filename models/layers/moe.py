"""Mixture of experts: many feed-forward networks, of which each token uses a few. Replaces `FeedForward` in a layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.config import FeedForwardConfig, MixtureOfExpertsConfig
from models.layers.feed_forward import FeedForward
from models.layers.linear import parameter


class UnpackedLinear(nn.Module):
    """Linear layer without bias that is never packed or quantised.

    It is small, and rounding its weight would change which experts a token uses.

    weight: [out, in], model dtype.
    forward: [tokens, in] -> [tokens, out], model dtype.
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features)

    def forward(self, x: Tensor) -> Tensor:
        return ops.DenseWeight(self.weight, None).multiply(x)


class MixtureOfExperts(nn.Module):
    """Weighted sum of the outputs of each token's experts: `sum(share * expert(x))`.

    With a shared expert, `sigmoid(shared_gate(x)) * shared(x)` is added for every token.
    Tokens are sorted by expert, so that an expert computes only its own tokens.
    The result of a token does not depend on the other tokens.

    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    Source: Shazeer et al. 2017, arXiv:1701.06538, section 2; shares: Jiang et al. 2024, arXiv:2401.04088, section 2.1.
    """

    unadaptable = ("experts",)

    def __init__(self, config: MixtureOfExpertsConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.router = UnpackedLinear(hidden_size, config.num_experts)
        self.experts = nn.ModuleList(FeedForward(config.expert, hidden_size) for _ in range(config.num_experts))
        self.shared: FeedForward | None = None
        if config.shared is not None:
            self.shared = FeedForward(config.shared, hidden_size)
            self.shared_gate = UnpackedLinear(hidden_size, 1)

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] == 0:
            return x
        shares, experts = self.route(x)
        by_expert = experts.flatten().argsort(stable=True)
        counts = torch.bincount(experts.flatten(), minlength=self.config.num_experts).tolist()
        inputs = torch.split(x[by_expert // self.config.experts_per_token], counts)
        outputs = torch.empty(len(by_expert), x.shape[1], dtype=x.dtype, device=x.device)
        outputs[by_expert] = torch.cat(
            [expert(rows) for expert, rows in zip(self.experts, inputs, strict=True) if len(rows)]
        )
        total = (outputs.view(*experts.shape, -1).float() * shares[..., None]).sum(1).to(x.dtype)
        if self.shared is None:
            return total
        with_shared: Tensor = total + torch.sigmoid(self.shared_gate(x)) * self.shared(x)
        return with_shared

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token. The probabilities are float32 for every model dtype.

        x: [tokens, hidden], model dtype.
        Returns (shares, experts), both [tokens, experts_per_token]: float32 weights, and int64 expert indices.
        """
        probabilities = torch.softmax(self.router(x).float(), dim=-1)
        shares, experts = probabilities.topk(self.config.experts_per_token, dim=-1)
        return (shares / shares.sum(-1, keepdim=True) if self.config.normalized else shares), experts


def make_feed_forward(
    config: FeedForwardConfig | MixtureOfExpertsConfig, hidden_size: int
) -> FeedForward | MixtureOfExperts:
    """The feed-forward sublayer of a configuration."""
    if isinstance(config, MixtureOfExpertsConfig):
        return MixtureOfExperts(config, hidden_size)
    return FeedForward(config, hidden_size)
