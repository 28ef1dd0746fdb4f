"""Mixture of experts: many feed-forward networks, of which each token uses a few. Replaces `FeedForward` in a layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import torch
from torch import Tensor, nn

from models.backends.choice import backend
from models.backends.linear_weights import EXPERT_PANEL, ExpertWeights, LinearPacker, pack_experts, stack_experts
from models.config import FeedForwardConfig, FeedForwardSumConfig, MixtureOfExpertsConfig, XieluFeedForwardConfig
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear, parameter
from models.layers.norms import SublayerNorms, make_norm
from models.layers.xielu import XieluFeedForward
from weights.quantized_matrix import QuantizedMatrix, concatenate_rows


class Router(Linear):
    """Chooses the experts of each token.

    The logits are float32 in a model of any dtype, because rounding them would change which experts a token uses.

    weight: [experts, hidden], bias: [experts] or None, model dtype.
    correction: [experts], float32 in a model of any dtype, added to the scores for the choice only; or None.
    norm: norm of the input, or None. expert_scale: [experts], model dtype, factors of the shares; or None.
    """

    def __init__(self, config: MixtureOfExpertsConfig, hidden_size: int) -> None:
        super().__init__(hidden_size, config.num_experts, config.router.bias)
        self.choices, self.config = config.experts_per_token, config.router
        self.correction = parameter(config.num_experts) if config.router.correction else None
        self.norm = make_norm(config.router.input_norm, hidden_size)
        self.expert_scale = parameter(config.num_experts) if config.router.expert_scale else None

    def choose(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Choose the experts of each token. x: [tokens, hidden].

        Returns shares, [tokens, choices], float32, and expert indices, [tokens, choices], int64, the best expert first.
        """
        if self.norm is not None:
            x = self.norm(x) * x.shape[1] ** -0.5
        if self.packed is not None:
            logits = self.packed.multiply(x)
        else:
            assert isinstance(self.weight, Tensor), "the matrix of a router is dequantised"
            bias = None if self.bias is None else self.bias.float()
            wide = x.float()
            logits = backend(wide).linear(wide, self.weight.float(), bias)
        shares, experts = backend(logits).route(logits, self.choices, self.config, self.correction)
        if self.expert_scale is None:
            return shares, experts
        return shares * self.expert_scale.float()[experts], experts


class MixtureOfExperts(nn.Module):
    """Weighted sum of the outputs of each token's experts: `sum(share * expert(x))`.

    With a shared expert, `sigmoid(shared_gate(x)) * shared(x)` is added for every token; the gate is optional.
    An expert computes only the tokens that use it. Without a capacity, the result of a token does not depend on other
    tokens.

    to_latent, from_latent: projections before and after the experts, if the experts have another width than the layer;
        else None.
    router, shared_gate: never quantised. They are small, and rounding would change which experts a token uses.
    experts: one feed-forward per expert, deleted once they are packed together.
    packed: all experts in a kernel's layout; None while they are not packed together.
    products: two lists of names below this module: the linears for the first products of all experts, and for the last
        products. `pack` joins the weights of each list.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    Source: Shazeer et al. 2017, arXiv:1701.06538, section 2; Jiang et al. 2024, arXiv:2401.04088, section 2.1 (shares).
    """

    unadaptable = ("router", "experts", "shared_gate")

    def __init__(self, config: MixtureOfExpertsConfig, hidden_size: int) -> None:
        super().__init__()
        self.config = config
        self.router = Router(config, hidden_size)
        width = config.latent_size or hidden_size
        self.experts = nn.ModuleList(FeedForward(config.expert, width) for _ in range(config.num_experts))
        self.packed: ExpertWeights | None = None
        parts, indices = ("gate", "up") if config.expert.gated else ("up",), range(config.num_experts)
        self.products = (
            [f"experts.{index}.{part}" for index in indices for part in parts],
            [f"experts.{index}.down" for index in indices],
        )
        self.shared: FeedForward | None = None
        self.shared_gate: Linear | None = None
        if config.shared is not None:
            self.shared = FeedForward(config.shared, hidden_size)
        if config.shared_gate:
            self.shared_gate = Linear(hidden_size, 1, bias=False)
        self.to_latent: Linear | None = None
        self.from_latent: Linear | None = None
        if config.latent_size is not None:
            self.to_latent = Linear(hidden_size, config.latent_size, config.latent_bias)
            self.from_latent = Linear(config.latent_size, hidden_size, config.latent_bias)

    @property
    def not_captured(self) -> str:
        """Why a decode step with this layer cannot be captured as a CUDA graph; empty once the experts are packed."""
        return "" if self.packed is not None else "experts whose tokens the host counts"

    def forward(self, x: Tensor, router_input: Tensor | None = None, lengths: Sequence[int] | None = None) -> Tensor:
        """Compute the weighted sum of each token's experts, plus the shared expert. x: [tokens, hidden].

        router_input: [tokens, hidden], what the router reads; None for x.
        lengths: number of tokens of each text, for experts with a capacity; None without a capacity.
        """
        shares, experts = self.router.choose(x if router_input is None else router_input)
        if self.config.capacity is not None:
            assert lengths is not None, "a capacity counts the tokens of each text"
            shares = shares * _has_room(experts, lengths, self.config.num_experts, self.config.capacity)
        shared: Tensor | None = None if self.shared is None else self.shared(x)
        shared_gate: Tensor | None = None if self.shared_gate is None else self.shared_gate(x)
        total: Tensor
        if self.to_latent is not None and self.from_latent is not None:
            latent = self.to_latent(x)
            if self.packed is None:
                total = self.from_latent(self._mix(latent, shares, experts))
            else:
                total = self.from_latent(self.packed.mix(latent, shares, experts, None, None))
        elif self.config.weighs_inputs:
            total = self._mix_weighted_inputs(x, shares, experts)
        elif self.packed is not None:
            return self.packed.mix(x, shares, experts, shared, shared_gate)
        else:
            total = self._mix(x, shares, experts)
        if shared is None:
            return total
        return total + (shared if shared_gate is None else torch.sigmoid(shared_gate) * shared)

    def pack(
        self,
        packer: LinearPacker,
        first_packer: LinearPacker,
        last_packer: LinearPacker,
        gate_packer: LinearPacker,
        router_packer: LinearPacker,
    ) -> None:
        """Replace the weights by packed weights, all experts in one weight per product.

        packer: packs the projections before and after the experts, and the product of the shared expert that its gate
            multiplies.
        first_packer, last_packer: pack the first and the last products of the experts, and of the shared expert.
        gate_packer: packs the gate of the shared expert. router_packer: packs the router, with float32 products.
        """
        self.router.pack(router_packer)
        if self.shared_gate is not None:
            self.shared_gate.pack(gate_packer)
        if self.shared is not None:
            self.shared.pack(first_packer, packer, last_packer)
        for linear in (self.to_latent, self.from_latent):
            if linear is not None:
                linear.pack(packer)
        if self.packed is None:
            inner, outer = ([cast(Linear, self.get_submodule(name)) for name in names] for names in self.products)
            parts = 2 if self.config.expert.gated else 1
            joined_inner = _joined(inner, partial(_in_panels, parts=parts))
            joined_outer = _joined(outer, partial(_in_panels, parts=1))
            self.packed = pack_experts(first_packer, last_packer, joined_inner, joined_outer, self.config)
            del self.experts

    def stack(self, first_packer: LinearPacker, last_packer: LinearPacker, gate_packer: LinearPacker) -> None:
        """Pack the weights of all experts of the layer together, for the Triton kernels. Also packs the shared gate.

        Does not change the router. The caller packs all other linears of the layer one by one.

        first_packer, last_packer: pack the first and the last products of the experts.
        gate_packer: packs the gate of the shared expert.
        """
        if self.shared_gate is not None:
            self.shared_gate.pack(gate_packer)
        if self.packed is None:
            inner, outer = ([cast(Linear, self.get_submodule(name)) for name in names] for names in self.products)
            joined_inner, joined_outer = _joined(inner, concatenate_rows), _joined(outer, concatenate_rows)
            self.packed = stack_experts(first_packer, last_packer, joined_inner, joined_outer, self.config)
            del self.experts

    def _mix(self, x: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
        """Compute experts that are not packed, one after another, and add up their results weighted by their shares.

        x: [tokens, hidden]. shares: [tokens, choices], float32. experts: [tokens, choices], int64.
        Returns [tokens, hidden].
        """
        by_expert = experts.flatten().argsort(stable=True)
        if len(by_expert) == 0:
            return x
        counts = torch.bincount(experts.flatten(), minlength=self.config.num_experts).tolist()
        inputs = torch.split(x[by_expert // experts.shape[1]], counts)
        outputs = torch.empty(len(by_expert), x.shape[1], dtype=x.dtype, device=x.device)
        outputs[by_expert] = torch.cat(
            [expert(rows) for expert, rows in zip(self.experts, inputs, strict=True) if len(rows)]
        )
        weighted = outputs.view(*experts.shape, -1).float() * shares[..., None]
        # Added one after another, so that the bits of a token do not depend on the number of tokens.
        total = weighted[:, 0]
        for choice in range(1, experts.shape[1]):
            total = total + weighted[:, choice]
        return total.to(x.dtype)

    def _mix_weighted_inputs(self, x: Tensor, shares: Tensor, experts: Tensor) -> Tensor:
        """Compute the sum of `expert(share * x)` over the experts of each token.

        x: [tokens, hidden]. shares: [tokens, choices], float32. experts: [tokens, choices], int64.
        """
        total: Tensor | None = None
        for choice in range(experts.shape[1]):
            part = slice(choice, choice + 1)
            inputs, ones = (x * shares[:, part]).to(x.dtype), torch.ones_like(shares[:, part]).contiguous()
            chosen = experts[:, part].contiguous()
            if self.packed is None:
                result = self._mix(inputs, ones, chosen)
            else:
                result = self.packed.mix(inputs, ones, chosen, None, None)
            total = result if total is None else total + result
        assert total is not None
        return total


def _has_room(experts: Tensor, lengths: Sequence[int], num_experts: int, capacity: int) -> Tensor:
    """Whether each token is among the first `capacity` tokens of its text that use the same expert.

    experts: [tokens, 1], int64. lengths: number of tokens of each text.
    Returns [tokens, 1], bool.
    """
    parts = []
    for own in torch.split(experts, list(lengths)):
        places = nn.functional.one_hot(own[:, 0], num_experts).cumsum(0).gather(1, own)
        parts.append(places <= capacity)
    return torch.cat(parts)


def _joined(
    linears: Sequence[Linear], join: Callable[[Sequence[Tensor]], Tensor]
) -> tuple[Tensor | QuantizedMatrix, Tensor | None]:
    """Join the linears of all experts into one weight and one bias.

    Quantised weights stay quantised, and must all have the same layout. The bias is None if no linear has one; a linear
    without a bias gets zeros.

    join: joins tensors along their first dimension.
    """
    weights = [linear.weight for linear in linears]
    quantized = [weight for weight in weights if isinstance(weight, QuantizedMatrix)]
    weight: Tensor | QuantizedMatrix
    if quantized:
        assert len(quantized) == len(weights), "the matrices of experts are kept together, or dequantised"
        weight = QuantizedMatrix.joined(quantized, join)
    else:
        weight = join([weight for weight in weights if isinstance(weight, Tensor)])
    biases = [linear.bias for linear in linears if linear.bias is not None]
    if not biases:
        return weight, None
    return weight, join(
        [biases[0].new_zeros(linear.weight.shape[0]) if linear.bias is None else linear.bias for linear in linears]
    )


def _in_panels(tensors: Sequence[Tensor], parts: int) -> Tensor:
    """Join tensors along their first dimension, padded to whole panels.

    Panels of `parts` consecutive tensors alternate.

    With two parts the order is: first panel of the first tensor, first panel of the second tensor, second panel of the
    first tensor, and so on.
    """
    panels: list[Tensor] = []
    for first in range(0, len(tensors), parts):
        in_turn = zip(*(tensor.split(EXPERT_PANEL) for tensor in tensors[first : first + parts]), strict=True)  # type: ignore[no-untyped-call]
        panels += [_padded(panel) for group in in_turn for panel in group]
    return concatenate_rows(panels)


def _padded(part: Tensor) -> Tensor:
    """Pad the output features of a tensor with zeros to a whole panel. part: at most one panel."""
    missing = EXPERT_PANEL - part.shape[0]
    return part if missing == 0 else concatenate_rows([part, part.new_zeros((missing, *part.shape[1:]))])


class FeedForwardSum(nn.Module):
    """Sum of several feed-forward networks with the same input, each with norms.

    The router of a mixture of experts reads x before the input norm.

    not_captured: why a decode step with this sum cannot be captured as a CUDA graph. It was not tried yet.
    forward: [tokens, hidden] -> [tokens, hidden], model dtype.
    """

    not_captured = "sums of feed-forwards"

    def __init__(self, config: FeedForwardSumConfig, hidden_size: int) -> None:
        super().__init__()
        self.parts = nn.ModuleList(make_feed_forward(part, hidden_size) for part, _ in config.parts)
        self.norms = nn.ModuleList(SublayerNorms(norms, hidden_size) for _, norms in config.parts)

    def forward(self, x: Tensor) -> Tensor:
        total: Tensor | None = None
        for part, norms in zip(self.parts, self.norms, strict=True):
            assert isinstance(norms, SublayerNorms)
            hidden = norms.norm_input(x)
            result = part(hidden, x) if isinstance(part, MixtureOfExperts) else part(hidden)
            result = result if norms.output is None else norms.output(result)
            total = result if total is None else total + result
        assert total is not None
        return total


FeedForwardLayer = FeedForward | XieluFeedForward | MixtureOfExperts | FeedForwardSum


def make_feed_forward(
    config: FeedForwardConfig | XieluFeedForwardConfig | MixtureOfExpertsConfig | FeedForwardSumConfig, hidden_size: int
) -> FeedForwardLayer:
    """Build the feed-forward sublayer of a configuration."""
    if isinstance(config, MixtureOfExpertsConfig):
        return MixtureOfExperts(config, hidden_size)
    if isinstance(config, FeedForwardSumConfig):
        return FeedForwardSum(config, hidden_size)
    if isinstance(config, XieluFeedForwardConfig):
        return XieluFeedForward(config, hidden_size)
    return FeedForward(config, hidden_size)
