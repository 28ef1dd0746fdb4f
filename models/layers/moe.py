"""A feed-forward sublayer of many, of which each token uses a few. Same protocol as `feed_forward`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.config import FeedForwardConfig, MixtureOfExpertsConfig
from models.layers.feed_forward import FeedForward
from models.layers.linear import parameter


class UnpackedLinear(nn.Module):
    """A linear layer that is never packed or rounded: it is small, and rounding would change which experts are chosen.

    weight: [out, in], model dtype. forward: [tokens, in] -> [tokens, out].
    """

    def __init__(self, in_features: int, out_features: int) -> None:
        super().__init__()
        self.weight = parameter(out_features, in_features)

    def forward(self, x: Tensor) -> Tensor:
        return ops.linear(x, self.weight, None)


class MixtureOfExperts(nn.Module):
    """`sum over a token's experts of share * expert(x)`, plus `sigmoid(shared_gate(x)) * shared(x)` where it has one.

    Tokens are brought into the order of their experts, so that each expert computes its own tokens and no others; what
    a token gets does not depend on who else is there.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    Source: Shazeer et al. 2017, arXiv:1701.06538, section 2; shares: Jiang et al. 2024, arXiv:2401.04088, 2.1.
    """

    not_by_token = ("experts",)

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
        shares, chosen = self.route(x)
        by_expert = chosen.flatten().argsort(stable=True)
        counts = torch.bincount(chosen.flatten(), minlength=self.config.num_experts).tolist()
        groups = torch.split(x[by_expert // self.config.experts_per_token], counts)
        found = [expert(group) for expert, group in zip(self.experts, groups, strict=True) if len(group)]
        outputs = torch.empty(len(by_expert), x.shape[1], dtype=x.dtype, device=x.device)
        outputs[by_expert] = torch.cat(found)
        mixed = (outputs.view(*chosen.shape, -1).float() * shares[..., None]).sum(1).to(x.dtype)
        if self.shared is None:
            return mixed
        gated: Tensor = mixed + torch.sigmoid(self.shared_gate(x)) * self.shared(x)
        return gated

    def route(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The shares of each token's experts, float32, and their numbers, int64, both [tokens, experts_per_token].

        x: [tokens, hidden]. The probabilities are in float32, whatever the dtype of the logits.
        """
        probabilities = torch.softmax(self.router(x).float(), dim=-1)
        shares, chosen = probabilities.topk(self.config.experts_per_token, dim=-1)
        return (shares / shares.sum(-1, keepdim=True) if self.config.normalized else shares), chosen


def make_feed_forward(
    config: FeedForwardConfig | MixtureOfExpertsConfig, hidden_size: int
) -> FeedForward | MixtureOfExperts:
    """The feed-forward sublayer that a configuration asks for."""
    return (
        MixtureOfExperts(config, hidden_size)
        if isinstance(config, MixtureOfExpertsConfig)
        else FeedForward(config, hidden_size)
    )
