"""The CUDA backend: Triton kernels, and plain torch for operations without a kernel.

Importing this file imports triton.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends import fixed_order
from models.backends.attention_metadata import AttentionMetadata
from models.backends.cuda.attention_view import CudaAttentionView, scores_of
from models.backends.cuda.kernels import activation as activation_kernels
from models.backends.cuda.kernels import beams as beam_kernels
from models.backends.cuda.kernels import decode_attention, norms, rotary, rounded_cache, sampling, tile_attention
from models.backends.cuda.kernels import logits_top_k as top_k_kernels
from models.backends.cuda.kernels.fixed_order_linear import fixed_order_linear
from models.backends.logits import LogitsTopK
from models.backends.rounded_slots import CacheSide, RoundedSlots
from models.backends.torch.backend import Backend
from models.backends.torch.beams import Beams
from models.backends.torch.sampling import Drawn, Filters, temperatures
from models.config import Activation

if TYPE_CHECKING:
    from models.backends.operands import CacheSlots, RotaryAngles


NUM_FILTER_COLUMNS = 5
"""Number of columns of `filter_columns`."""
_LARGEST_LOGIT = -1.0
"""Value of top_k that marks a row with temperature 0: its token is the one with the largest logit."""


def filter_columns(rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Settings of a draw as numbers, [5, rows]: temperature, top_k, top_p, log of min_p, and uniform random number.

    rows: settings of each row. A temperature of 0 means that the token with the largest logit is chosen.
    uniforms: [rows], in [0, 1).
    """
    return with_uniforms(filter_settings(rows), uniforms)


def filter_settings(rows: Sequence[Filters]) -> NDArray[np.float64]:
    """The columns of `filter_columns` that depend on the settings only, [4, rows]."""
    return np.stack(
        [
            temperatures(rows).double().numpy(),
            np.array([row.top_k if row.temperature > 0.0 else _LARGEST_LOGIT for row in rows]),
            np.array([row.top_p for row in rows]),
            torch.tensor([row.min_p for row in rows]).log().double().numpy(),
        ]
    )


def with_uniforms(settings: NDArray[np.float64], uniforms: NDArray[np.float64]) -> NDArray[np.float64]:
    """All columns of `filter_columns`. settings: result of `filter_settings`."""
    return np.concatenate([settings, uniforms[None]])


def draw_by_columns(logits: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Draw tokens with the settings of `filter_columns`.

    columns: result of `filter_columns`, on the device of the logits.
    Returns two tensors. [rows], bool: whether the temperature of the row is above 0. [rows], int64: the drawn token;
    arbitrary for rows with temperature 0.
    """
    return columns[1] > _LARGEST_LOGIT, sampling.draw(logits, *_filters_of(columns)).tokens


def _filters_of(columns: Tensor) -> tuple[sampling.FilterColumns, Tensor]:
    heats, top_ks, top_ps, log_min_ps, uniforms = columns
    return sampling.FilterColumns(heats.float(), top_ks.int(), top_ps, log_min_ps.float()), uniforms


class CudaBackend(Backend):
    """Triton kernels, and plain torch for operations without a kernel.

    With `fixed_order.enabled`, no operation sums in an order that depends on the number of rows.
    """

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if not fixed_order.enabled:
            return super().linear(x, weight, bias)
        rows, columns = x.reshape(-1, x.shape[-1]).contiguous(), weight.shape[0]
        out = x.new_empty(rows.shape[0], columns)
        return fixed_order_linear(rows, weight.contiguous(), bias, out).view(*x.shape[:-1], columns)

    def layer_norm(self, x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Tensor:
        if weight.dtype != x.dtype:
            return super().layer_norm(x, weight, bias, eps)
        return norms.layer_norm(x, weight, bias, eps)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if weight.dtype != x.dtype:
            return super().rms_norm(x, weight, eps)
        return norms.rms_norm(x, weight, eps)

    def rms_norm_from_one(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        if weight.dtype != x.dtype:
            return super().rms_norm_from_one(x, weight, eps)
        return norms.rms_norm_from_one(x, weight, eps)

    def add_rms_norm(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm(x, y, weight, eps)

    def add_rms_norm_from_one(self, x: Tensor, y: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        return norms.add_rms_norm_from_one(x, y, weight, eps)

    def add_layer_norm(
        self, x: Tensor, y: Tensor, weight: Tensor, bias: Tensor | None, eps: float
    ) -> tuple[Tensor, Tensor]:
        return norms.add_layer_norm(x, y, weight, bias, eps)

    def unit_rows(self, x: Tensor) -> Tensor:
        return norms.unit_rows(x)

    def rotate(self, x: Tensor, angles: RotaryAngles, interleaved: bool) -> Tensor:
        return rotary.rotate(x, rotary.RotaryTables(angles.cos_table, angles.sin_table, angles.positions, interleaved))

    def rotate_and_store(
        self, x: Tensor, value: Tensor, angles: RotaryAngles, interleaved: bool, store: CacheSlots
    ) -> Tensor:
        tables = rotary.RotaryTables(angles.cos_table, angles.sin_table, angles.positions, interleaved)
        return rotary.rotate_and_store(x, value, tables, store.keys, store.values, store.slots)

    def gated_activation(self, gate: Tensor, up: Tensor, activation: Activation) -> Tensor:
        return activation_kernels.gated_activation(gate, up, activation)

    def write_slots(
        self, key_cache: CacheSide, value_cache: CacheSide, slots: Tensor, key: Tensor, value: Tensor
    ) -> None:
        if isinstance(key_cache, RoundedSlots):
            assert isinstance(value_cache, RoundedSlots), "both sides of a cache are alike"
            rounded_cache.write_rounded_slots(key_cache, value_cache, slots, key, value)
        else:
            assert not isinstance(value_cache, RoundedSlots), "both sides of a cache are alike"
            rotary.write_slots(key_cache, value_cache, slots, key, value)

    def ragged_attention(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        metadata: AttentionMetadata,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        view = metadata.view(CudaAttentionView, query.device)
        assert view.tiles is not None
        return tile_attention.tile_attention(query, key, value, view.tiles, scores_of(metadata, scale, cap, sinks))

    def paged_attention(
        self,
        query: Tensor,
        key_cache: CacheSide,
        value_cache: CacheSide,
        metadata: AttentionMetadata,
        scale: float,
        cap: float | None = None,
        sinks: Tensor | None = None,
    ) -> Tensor:
        view, scores = metadata.view(CudaAttentionView, query.device), scores_of(metadata, scale, cap, sinks)
        if view.tiles is not None:
            return tile_attention.tile_attention(query, key_cache, value_cache, view.tiles, scores)
        assert view.decode is not None
        codes = value_cache.codes if isinstance(value_cache, RoundedSlots) else value_cache
        return decode_attention.paged_decode_attention(
            query,
            key_cache,
            value_cache,
            view.decode,
            scores,
            view.splits(codes.shape[2]),
            view.partials(query.shape[1], codes.shape[3]),
        )

    def logits_top_k(self, logits: Tensor, k: int = 1, with_logsumexp: bool = False) -> LogitsTopK:
        if k > top_k_kernels.MAX_TOP_K:
            # The order of torch's sums depends on the number of rows, so the kernel computes the log-sum-exp.
            sums = top_k_kernels.logits_top_k(logits, 1, True).logsumexp if with_logsumexp else None
            return super().logits_top_k(logits, k, False)._replace(logsumexp=sums)
        return top_k_kernels.logits_top_k(logits, k, with_logsumexp)

    def choose_beams(
        self,
        log_probs: Tensor,
        token_ids: Tensor,
        is_finite: Tensor,
        scores: Tensor,
        searches: Tensor,
        num_candidates: int,
        beams: Beams,
    ) -> Tensor:
        return beam_kernels.choose_beams(log_probs, token_ids, is_finite, scores, searches, num_candidates, beams)

    def follow_beams(
        self, tables: Tensor, beams: Beams, scores: Tensor, places: Tensor, slots: Tensor, key_lens: Tensor
    ) -> None:
        beam_kernels.follow_beams(tables, beams, scores, places, slots, key_lens)

    def draw(self, logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
        # The kernel has no typical_p. It still draws the other rows, whose tokens must not depend on the batch.
        typical = [index for index, row in enumerate(rows) if row.typical_p < 1.0]
        if typical and fixed_order.enabled and len(rows) > 1:
            alone = [self.draw(logits[i : i + 1], [row], uniforms[i : i + 1]) for i, row in enumerate(rows)]
            return Drawn(*(torch.cat(parts) for parts in zip(*alone, strict=True)))
        if typical and len(typical) == len(rows):
            return super().draw(logits, rows, uniforms)
        columns = torch.from_numpy(filter_columns(rows, uniforms)).to(logits.device, non_blocking=True)
        drawn = sampling.draw(logits, *_filters_of(columns))
        if typical:
            where = torch.tensor(typical, device=logits.device)
            own = super().draw(logits[where], [rows[index] for index in typical], uniforms[typical])
            for result, part in zip(drawn, own, strict=True):
                result[where] = part
        return drawn


CUDA = CudaBackend()
