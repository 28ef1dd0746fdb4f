"""Low-rank adapters (LoRA) on the weights of one model. Each row of a step can use another adapter.

A linear that an adapter changes gets an `AdaptedWeight` as its packed weight. All other linears, and models without
adapters, are unchanged. `AdapterSet.used` sets the adapter of each row for one forward pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from models.backends import linear_weights
from models.backends.linear_weights import DenseWeight, LinearWeight
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.backends.torch.activations import activate
from models.config import Activation
from models.layers.attention import Attention
from models.layers.embeddings import Embedding
from models.layers.feed_forward import FeedForward
from models.layers.linear import Linear

_TABLES = ("tokens", "token_types")
"""Tables of an `Embedding` that an adapter may change. The projection of an embedding is adapted like a linear
layer."""

_MERGED = ("query", "key", "value")
"""Projections that `Attention.merged` computes as one product, in this order."""


@dataclass(frozen=True)
class LowRankUpdate:
    """An adapter's update of one linear: it adds `x down^T up^T` to the output of the linear.

    down: [rank, in], any float dtype. For an embedding table, `in` is the number of rows, and an index selects a column
        of `down`.
    up: [out, rank], same dtype, already multiplied by the adapter's scale (alpha / rank).
    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class AdapterSelection:
    """The rows of a tensor that use adapters, grouped by adapter.

    rows: [n], int64, row indices; or a slice of all rows in their order.
    parts: name of each adapter with its range in `rows`.
    rest: [m], int64, indices of the other rows; None if there are none.
    """

    rows: slice | Tensor
    parts: tuple[tuple[str, slice], ...]
    rest: Tensor | None


class AdapterRows:
    """Which adapter each row of a forward pass uses.

    names: name of each sequence's adapter; "" for a sequence without an adapter.
    counts: number of rows of each sequence.
    device: device of the row indices.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int], device: torch.device) -> None:
        starts = (0, *accumulate(counts))
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for index, name in enumerate(names):
            self._spans.setdefault(name, []).append((starts[index], starts[index + 1]))
        self.count, self._device = starts[-1], device
        self._selections: dict[frozenset[str], AdapterSelection | None] = {}

    def select(self, names: frozenset[str]) -> AdapterSelection | None:
        """The rows that use one of the named adapters; None if there are none.

        Cached, because many linears have the same names.
        """
        if names not in self._selections:
            self._selections[names] = self._select(names)
        return self._selections[names]

    def _select(self, names: frozenset[str]) -> AdapterSelection | None:
        used = [name for name in self._spans if name in names]
        if not used:
            return None
        rest = self._rows_of(name for name in self._spans if name not in names)
        if rest is None and len(used) == 1:
            # A slice of all rows also fits tensors with another number of rows, such as one row per sequence.
            return AdapterSelection(slice(None), ((used[0], slice(None)),), None)
        ends = (0, *accumulate(sum(end - start for start, end in self._spans[name]) for name in used))
        parts = tuple((name, slice(*ends[index : index + 2])) for index, name in enumerate(used))
        rows = self._rows_of(used)
        assert rows is not None
        return AdapterSelection(rows, parts, rest)

    def _rows_of(self, names: Iterable[str]) -> Tensor | None:
        """Indices of the rows that use these adapters, adapter by adapter: [n], int64; None if there are none."""
        rows = [np.arange(*span) for name in names for span in self._spans[name]]
        return torch.from_numpy(np.concatenate(rows)).to(self._device, non_blocking=True) if rows else None


class AdapterSet:
    """All LoRA adapters that are loaded for one model, and the adapter of each row of a batch.

    rows: adapter of each row of the current forward pass; None outside a pass, or if no row uses an adapter.
    """

    def __init__(self) -> None:
        self.rows: AdapterRows | None = None
        self._device = torch.device("cpu")

    def used(self, names: Sequence[str], counts: Sequence[int]) -> AbstractContextManager[None]:
        """Context manager for a forward pass: inside, each row is computed with the adapter of its sequence.

        names: name of each sequence's adapter, "" for a sequence without an adapter; empty if no sequence has one.
        counts: number of rows of each sequence.
        """
        return self._using(AdapterRows(names, counts, self._device)) if any(names) else nullcontext()

    @contextmanager
    def _using(self, rows: AdapterRows) -> Iterator[None]:
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    def attach(
        self,
        model: nn.Module,
        name: str,
        updates: Mapping[str, LowRankUpdate],
        dtype: torch.dtype,
        memory: TensorMemory = PRIVATE,
    ) -> int:
        """Add an adapter to the weights of a model, after they are packed.

        name: name of the adapter.
        updates: update of each linear, by the linear's path in the model.
        dtype: dtype in which the updates are computed.
        memory: keeps the packed updates.
        Returns the memory of the adapter, in bytes.
        """
        merged: dict[str, dict[str, LowRankUpdate]] = {}
        added_bytes = 0
        for path, update in updates.items():
            self._device = update.down.device
            owner_path, _, leaf = path.rpartition(".")
            owner = model.get_submodule(owner_path)
            if isinstance(owner, Embedding) and leaf in _TABLES:
                owner.updates = updates_of = self._embedding_updates(owner)
                added_bytes += updates_of.add(name, leaf, update, dtype, memory)
                continue
            if isinstance(owner, Attention) and owner.merged is not None and leaf in _MERGED:
                merged.setdefault(owner_path, {})[leaf] = update
                continue
            linear = owner.get_submodule(leaf)
            assert isinstance(linear, Linear)
            linear.packed = adapted = self._adapt(linear.linear_weight)
            if isinstance(owner, FeedForward) and leaf != "down":
                owner.merged = None
            added_bytes += adapted.add(name, update, dtype, memory)
        for path, parts in merged.items():
            attention = model.get_submodule(path)
            assert isinstance(attention, Attention) and attention.merged is not None
            attention.merged = adapted = self._adapt(attention.merged)
            added_bytes += adapted.add(name, _merge(attention, parts), dtype, memory)
        return added_bytes

    def _embedding_updates(self, embedding: Embedding) -> EmbeddingUpdates:
        return embedding.updates if isinstance(embedding.updates, EmbeddingUpdates) else EmbeddingUpdates(self)

    def _adapt(self, base: LinearWeight) -> AdaptedWeight:
        return base if isinstance(base, AdaptedWeight) else AdaptedWeight(base, self)


class EmbeddingUpdates:
    """Low-rank updates of the tables of an embedding, for the rows of a step that use adapters.

    An update adds `up @ down[:, index]` to the table row with this index.
    """

    def __init__(self, adapters: AdapterSet) -> None:
        self._adapters = adapters
        self._updates: dict[str, dict[str, tuple[Tensor, LinearWeight]]] = {}

    def add(self, name: str, table: str, update: LowRankUpdate, dtype: torch.dtype, memory: TensorMemory) -> int:
        """Add the update of an adapter to the table `tokens` or `token_types`.

        Returns the memory of the update in bytes.

        dtype: dtype in which the update is computed. memory: keeps the packed update.
        """
        packer = linear_weights.packer(dtype, update.up.device, memory=memory) or DenseWeight
        rows, up = update.down.T.to(dtype).contiguous(), packer(update.up.to(dtype).contiguous(), None)
        self._updates.setdefault(name, {})[table] = rows, up
        return rows.nbytes + up.nbytes

    def __call__(self, x: Tensor, token_ids: Tensor, token_type_ids: Tensor | None) -> Tensor:
        """Add the updates of the current forward pass to the sum of the table rows, in place. Returns x.

        x: [tokens, width], model dtype. token_ids: [tokens], int64. token_type_ids: [tokens], int64, or None for all 0.
        """
        rows = self._adapters.rows
        selection = None if rows is None else rows.select(frozenset(self._updates))
        if selection is None:
            return x
        for name, part in selection.parts:
            chosen = part if isinstance(selection.rows, slice) else selection.rows[part]
            for table, (factors, up) in self._updates[name].items():
                ids = token_ids if table == "tokens" else token_type_ids
                if ids is None or len(factors) == 1:
                    ids = torch.zeros_like(token_ids)
                x[chosen] += up.multiply(factors[ids[chosen]])
        return x


class AdaptedWeight:
    """A weight with the low-rank updates of several adapters. An update applies to the rows that use its adapter.

    Each row gives the same bits as in a batch of one row. A row without an adapter gives the bits of the base weight.
    The product of an adapter is computed only for the rows that use it.
    """

    def __init__(self, base: LinearWeight, adapters: AdapterSet) -> None:
        self._base, self._adapters = base, adapters
        self._updates: dict[str, tuple[torch.dtype, LinearWeight, LinearWeight]] = {}
        self._names: frozenset[str] = frozenset()

    def add(self, name: str, update: LowRankUpdate, dtype: torch.dtype, memory: TensorMemory) -> int:
        """Add the update of an adapter. Returns the memory of the update in bytes.

        dtype: dtype in which the update is computed. memory: keeps the packed update.
        """
        packer = linear_weights.packer(dtype, update.down.device, memory=memory) or DenseWeight
        down, up = (packer(factor.to(dtype).contiguous(), None) for factor in (update.down, update.up))
        self._updates[name] = (dtype, down, up)
        self._names = frozenset(self._updates)
        return down.nbytes + up.nbytes

    @property
    def nbytes(self) -> int:
        return self._base.nbytes

    def rows(self, index: Tensor) -> Tensor:
        return self._base.rows(index)

    def slice(self, first: int, end: int) -> LinearWeight | None:
        """Always None: weights are sliced before adapters are added to them."""
        return None

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute `activation(x W^T + b + updates) * multiplier`.

        x: [rows, in], model dtype. multiplier: [rows, out], dtype of the result.
        out: [rows or more, out], contiguous: memory for the result; None for new memory.
        Returns [rows, out].
        """
        rows = self._adapters.rows
        selection = None if rows is None else rows.select(self._names)
        if rows is None or selection is None:
            return self._base.multiply(x, activation, multiplier, out)
        assert isinstance(selection.rows, slice) or len(x) == rows.count, "x has other rows than the forward pass"
        assert out is None, "output heads have no adapters"
        selected = x[selection.rows]
        if activation is None and multiplier is None:
            y = self._base.multiply(x)
            adapted = self._add_updates(y[selection.rows], selected, selection)
        else:
            # The update is added before the activation, so the base product of these rows must not include it.
            adapted = self._add_updates(self._base.multiply(selected), selected, selection)
            if activation is not None:
                adapted = activate(adapted, activation)
            if multiplier is not None:
                adapted = adapted * multiplier[selection.rows]
            y = adapted
            if isinstance(selection.rows, Tensor):
                y = adapted.new_empty(len(x), adapted.shape[1])
            if selection.rest is not None:
                rest = selection.rest
                factor = None if multiplier is None else multiplier[rest]
                y[rest] = self._base.multiply(x[rest], activation, factor)
        if isinstance(selection.rows, Tensor):
            y[selection.rows] = adapted
        return y

    def _add_updates(self, y: Tensor, x: Tensor, selection: AdapterSelection) -> Tensor:
        """Add the updates to the product of the base weight, in place. Returns y.

        y: [n, out], product of the base weight. Its dtype may differ from that of x: around attention, int8 weights
            write bfloat16.
        x: [n, in], input of the base weight.
        selection: the adapters of the n rows.
        """
        for name, part in selection.parts:
            dtype, down, up = self._updates[name]
            y[part] += up.multiply(down.multiply(x[part].to(dtype)))
        return y


def _merge(attention: Attention, parts: Mapping[str, LowRankUpdate]) -> LowRankUpdate:
    """Merge the updates of queries, keys and values into one update of `attention.merged`.

    parts: updates by the name of the projection. A `down` factor that several updates share appears once in the result.
    """
    config = attention.config
    heads = {"query": config.num_heads, "key": config.num_kv_heads, "value": config.num_kv_heads}
    if config.values_of_keys:
        del heads["value"]
    starts = dict(zip(_MERGED, accumulate((0, heads["query"], heads["key"])), strict=True))
    downs: dict[int, Tensor] = {id(part.down): part.down for part in parts.values()}
    ends = (0, *accumulate(len(down) for down in downs.values()))
    columns = {key: slice(*ends[index : index + 2]) for index, key in enumerate(downs)}
    down = torch.cat(list(downs.values()))
    up = down.new_zeros(sum(heads.values()) * config.head_dim, len(down))
    for leaf, part in parts.items():
        start = starts[leaf] * config.head_dim
        up[start : start + len(part.up), columns[id(part.down)]] = part.up
    return LowRankUpdate(down, up)
