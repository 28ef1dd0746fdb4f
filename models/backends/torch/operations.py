"""The reference implementation of the operations, in plain torch: any device, any float dtype."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.operands import CacheSlots, RotaryAngles, XieluShape
from models.backends.rounded_slots import CacheSide, RoundedSlots
from models.backends.torch.activations import activate, by_rows
from models.config import Activation, RouterConfig


class TorchOperations:
    """Products, norms, sums of table rows, expert routing, activations, rotary embedding and cache writes."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """Multiply rows by a dense weight: `x W^T + b`.

        x: [..., in]. weight: [out, in]. bias: [out] or None. All have the same dtype.
        Returns [..., out].
        """
        return F.linear(x, weight, bias)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        """Layer norm over the last dimension, computed in float32.

        x: [..., hidden]. weight: [hidden]. bias: [hidden] or None. All have the same dtype.
        Returns a tensor like x. Source: Ba et al. 2016, arXiv:1607.06450.
        """
        return F.layer_norm(x, weight.shape, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm over the last dimension: normalised in float32, scaled in the dtype of x.

        x: [..., hidden]. weight: [hidden]. Both have the same dtype.
        Returns a tensor like x. Source: Zhang and Sennrich 2019, arXiv:1910.07467.
        """
        wide = x.float()
        return weight * (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)).to(x.dtype)

    def rms_norm_from_one(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """RMS norm with the weight `1 + weight`, computed entirely in float32.

        x: [..., hidden]. weight: [hidden]. Both have the same dtype. Returns a tensor like x.
        Source: Gemma Team 2024, arXiv:2403.08295, and its published code.
        """
        return self.rms_norm(x.float(), 1.0 + weight.float(), eps).to(x.dtype)

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Residual sum and its RMS norm: `(x + y, rms_norm(x + y))`.

        x, y: [tokens, hidden]. weight: [hidden]. All have the same dtype.
        Returns two tensors [tokens, hidden].
        """
        total = x + y
        return total, self.rms_norm(total, weight, eps)

    def add_rms_norm_from_one(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Residual sum and its RMS norm with the weight `1 + weight`: `(x + y, rms_norm_from_one(x + y))`.

        x, y: [tokens, hidden]. weight: [hidden]. All have the same dtype.
        Returns two tensors [tokens, hidden].
        """
        total = x + y
        return total, self.rms_norm_from_one(total, weight, eps)

    def add_layer_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        """Residual sum and its layer norm: `(x + y, layer_norm(x + y))`. x, y: [tokens, hidden]."""
        total = x + y
        return total, self.layer_norm(total, weight, bias, eps)

    def unit_rows(self, x: Tensor) -> Tensor:
        """Scale each row to unit length; a row of zeros stays zero. x: [rows, width], float32. Returns a new tensor."""
        return F.normalize(x, dim=-1)

    def sum_of_rows(
        self, lookups: Sequence[tuple[Tensor | None, Tensor]], scale: float = 1.0, onto: Tensor | None = None
    ) -> Tensor:
        """Sum of table rows: the embedding of tokens, positions and token types.

        lookups: one to three pairs of an index [rows], int64, and a table [count, width], summed in this order. All
            tables have the same dtype. An index of None uses row 0 of its table for all rows.
        scale: factor of the first table's rows, where `onto` is None.
        onto: [rows, width], initial value of the sum, or None. Without it the first lookup must have an index.
        Returns [rows, width]. Raises IndexError for an index outside its table.
        """
        summands = [table[0] if index is None else F.embedding(index, table) for index, table in lookups]
        if onto is None:
            onto, *summands = summands
            onto = onto if scale == 1.0 else onto * scale
        for rows in summands:
            onto = onto + rows
        return onto

    def means_of_spans(self, x: Tensor, spans: Sequence[tuple[int, int]]) -> Tensor:
        """Mean of each span of rows, for pooling.

        x: [rows, width]. spans: pairs of first row and row after the last; each has at least one row.
        Returns [spans, width], float32.
        """
        return torch.stack([x[first:end].float().mean(0) for first, end in spans])

    def scale_by_row(self, x: Tensor, factors: Tensor) -> Tensor:
        """Multiply each row by its factor, in float32.

        x: [rows, ...]. factors: [rows, 1], float32. Returns a tensor like x.
        """
        return (x.float() * factors.view(-1, *(1,) * (x.dim() - 1))).to(x.dtype)

    def copy_into(self, x: Tensor, out: Tensor) -> None:
        """Copy a tensor to given memory. x, out: [rows, width], the same dtype."""
        out.copy_(x)

    def take_rows(self, x: Tensor, index: Tensor) -> Tensor:
        """Gather rows. x: [rows, ...]. index: [n], int64. Returns [n, ...], contiguous."""
        return x[index]

    def route(
        self, logits: Tensor, choices: int, config: RouterConfig, correction: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Choose the experts with the best scores for each token. Among equal scores, the first expert is chosen.

        logits: [tokens, experts]. A logit that is not finite makes all shares of its token NaN.
        choices: number of experts per token.
        config: how scores, choice and shares are computed. All are computed in float32.
        correction: [experts], float32, added to the scores for the choice only; or None.
        Returns shares, [tokens, choices], float32, and expert indices, [tokens, choices], int64, the best expert first.
        """
        logits = logits.float()
        not_finite = (logits - logits).sum(-1, keepdim=True)
        if config.score == "sparse_mixer":
            shares, experts = _mix_sparsely(logits, choices, config.tolerance)
        else:
            scores = torch.sigmoid(logits) if config.score == "sigmoid" else torch.softmax(logits, dim=-1)
            keys = logits if config.chooses_by_logits else scores
            if correction is not None:
                keys = scores + correction.float()
            if config.groups > 1:
                keys = _in_best_groups(keys, config)
            experts = _best(keys, choices)
            shares = scores.gather(1, experts)
            if config.normalized:
                shares = shares / (shares.sum(-1, keepdim=True) + config.epsilon)
        return shares * config.scale + not_finite, experts

    def xielu(self, x: Tensor, shape: XieluShape) -> Tensor:
        """The activation xIELU, computed in float32.

        It is `alpha_p * x ** 2 + beta * x` above zero, else `alpha_n * (expm1(min(x, eps)) - x) + beta * x`.

        x: [tokens, width].
        Returns a new tensor like x. Source: Huang and Schlag 2024, arXiv:2411.13010, section 4.
        """
        wide = x.float()
        curve = torch.where(
            wide > 0,
            shape.alpha_p * wide * wide,
            shape.alpha_n * (by_rows(torch.expm1, wide.clamp(max=shape.eps)) - wide),
        )
        return (curve + shape.beta * wide).to(x.dtype)

    def scaled_activation(self, x: Tensor, scale: float, activation: Activation) -> Tensor:
        """`activation(scale * x)`, where `scale * x` is rounded to the dtype of x.

        x: [tokens, width].
        Returns a new tensor like x.
        """
        return activate(x * scale, activation)

    def soft_cap(self, x: Tensor, cap: float) -> Tensor:
        """Soft capping, `cap * tanh(x / cap)`, which keeps numbers between `-cap` and `cap`.

        x: [rows, width], float32. Its memory may be overwritten.
        Returns a tensor like x, which may be x itself. Source: Gemma Team 2024, arXiv:2408.00118, section 2.
        """
        return x.div_(cap).tanh_().mul_(cap)

    def rotate(self, x: Tensor, angles: RotaryAngles, interleaved: bool) -> Tensor:
        """Rotate query or key heads by their positions (rotary position embedding), in float32.

        x: [tokens, heads, head_dim], model dtype.
        angles: angles for `dim / 2` pairs of dimensions, dim <= head_dim. Dimensions from `dim` on do not change.
        interleaved: whether pairs are (0, 1), (2, 3)...; otherwise they are (0, dim / 2), (1, dim / 2 + 1)...
        Returns a new tensor like x. Source: Su et al. 2021, arXiv:2104.09864, section 3.4.2.
        """
        cos, sin = angles.cos, angles.sin
        dim = 2 * cos.shape[-1]
        rotated, rest = x[..., :dim].float(), x[..., dim:]
        first, second = (rotated[..., ::2], rotated[..., 1::2]) if interleaved else rotated.chunk(2, -1)
        pair = (first * cos - second * sin, second * cos + first * sin)
        rotated = torch.stack(pair, -1).flatten(-2) if interleaved else torch.cat(pair, -1)
        return torch.cat([rotated.to(x.dtype), rest], -1) if rest.shape[-1] else rotated.to(x.dtype)

    def rotate_and_store(
        self, x: Tensor, value: Tensor, angles: RotaryAngles, interleaved: bool, store: CacheSlots
    ) -> Tensor:
        """Rotate queries and keys, and store the keys and the values in a paged cache.

        x: [tokens, heads + kv_heads, head_dim], queries, then keys. value: [tokens, kv_heads, value_dim]. Model dtype.
        angles: angles of the tokens. interleaved: whether the pairs of dimensions that rotate are neighbours.
        store: the cache, and the slot of each token.
        Returns the rotated queries, [tokens, heads, head_dim].
        """
        heads, rotated = x.shape[1] - value.shape[1], self.rotate(x, angles, interleaved)
        self.write_slots(store.keys, store.values, store.slots, rotated[:, heads:], value)
        return rotated[:, :heads]

    def gated_activation(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        """`activation(gate) * up` of the two halves of one product.

        gate, up: [rows, width], model dtype; the last dimension contiguous.
        Returns [rows, width].
        """
        return activate(gate, activation) * up

    def write_slots(
        self, key_cache: CacheSide, value_cache: CacheSide, slots: Tensor, key: Tensor, value: Tensor
    ) -> None:
        """Store new keys and values in a paged cache.

        key_cache, value_cache: [blocks, block_size, kv_heads, head_dim], or both RoundedSlots.
        slots: [tokens], int64: slot of each token, `block * block_size + offset`.
        key, value: [tokens, kv_heads, head_dim].
        """
        for cache, side in ((key_cache, key), (value_cache, value)):
            if isinstance(cache, RoundedSlots):
                cache.write(slots, side)
            else:
                cache.flatten(0, 1).index_copy_(0, slots, side)

    def copy_blocks(self, caches: Sequence[Tensor], copies: Sequence[tuple[int, int, int, int]]) -> None:
        """Copy slots between blocks in each cache, for a copy on write.

        caches: [blocks, block_size, kv_heads, head_dim] each, with equally many blocks.
        copies: (source block, destination block, first slot, slot after the last). A backend may copy further slots of
            the block; this reference copies whole blocks. A block is never both a source and a destination.
        """
        source, destination = torch.tensor(copies)[:, :2].to(caches[0].device, non_blocking=True).unbind(1)
        for cache in caches:
            cache.index_copy_(0, destination, cache.index_select(0, source))


def _best(keys: Tensor, count: int) -> Tensor:
    """Indices of the `count` largest keys of each row; of equal keys, the first: [rows, n] -> [rows, count], int64."""
    return keys.sort(dim=-1, descending=True, stable=True).indices[:, :count].contiguous()


def _in_best_groups(keys: Tensor, config: RouterConfig) -> Tensor:
    """Replace the scores of experts outside the best groups by -inf.

    keys: [tokens, experts], float32, the scores by which experts are chosen. Returns a tensor like the keys.
    """
    by_group = keys.view(len(keys), config.groups, -1)
    group_keys = by_group.sort(dim=-1, descending=True).values[..., : config.group_members].sum(-1)
    hidden = torch.ones_like(group_keys, dtype=torch.bool)
    hidden.scatter_(1, _best(group_keys, config.groups_per_token), False)
    return by_group.masked_fill(hidden[..., None], -torch.inf).flatten(1)


def _mix_sparsely(logits: Tensor, choices: int, tolerance: float) -> tuple[Tensor, Tensor]:
    """Shares and experts of each token by the sparse mixer of PhiMoE, [tokens, choices] each.

    `RouterConfig` explains the rule.

    logits: [tokens, experts], float32. tolerance: `RouterConfig.tolerance`.
    """
    left, experts, shares = logits, _best(logits, choices), []
    for expert in torch.split(experts, 1, dim=1):
        largest = logits.gather(1, expert)
        is_far = (largest - left) / left.abs().clamp(min=largest) > 2 * tolerance
        shares.append(left.masked_fill(is_far, -torch.inf).softmax(-1).gather(1, expert))
        left = left.scatter(1, expert, -torch.inf)
    return torch.cat(shares, dim=1), experts
