"""Low-rank adapters beside the weights of one model, each for the rows that ask for it.

A linear that some adapter changes gets an `AdaptedLinear` in place of its packed weight; the others, and a model
without adapters, know nothing of all this. Who uses which adapter is said for one pass at a time (`Adapters.rows`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from itertools import accumulate

import numpy as np
import torch
from torch import Tensor, nn

from models.backends import interface as ops
from models.config import Activation
from models.layers.activations import activate
from models.layers.attention import Attention
from models.layers.linear import Linear

_JOINED = ("query", "key", "value")


@dataclass(frozen=True)
class LowRank:
    """What an adapter adds to a linear: `x down^T up^T`, any float dtype. down: [rank, in]. up: [out, rank].

    Source: Hu et al. 2021, arXiv:2106.09685, section 4.1; its factor alpha / rank is in `up`.
    """

    down: Tensor
    up: Tensor


@dataclass(frozen=True)
class AdapterSelection:
    """Rows of a tensor that go through adapters: `rows`, adapter by adapter, each with its `parts` of them.

    rows: [n], int64, or a slice for all rows in their order. rest: the other rows, [m], int64, or None without any.
    """

    rows: slice | Tensor
    parts: tuple[tuple[str, slice], ...]
    rest: Tensor | None


class AdapterRows:
    """Which rows of a pass's tensors use which adapter.

    names: an adapter for each sequence, empty for none. counts: how many rows each sequence has.
    """

    def __init__(self, names: Sequence[str], counts: Sequence[int], device: torch.device) -> None:
        starts = (0, *accumulate(counts))
        self._spans: dict[str, list[tuple[int, int]]] = {}
        for index, name in enumerate(names):
            self._spans.setdefault(name, []).append((starts[index], starts[index + 1]))
        self.count, self._device = starts[-1], device
        self._chosen: dict[frozenset[str], AdapterSelection | None] = {}

    def among(self, names: frozenset[str]) -> AdapterSelection | None:
        """The rows of these adapters; None if there are none. Worked out once for all linears that ask the same."""
        if names not in self._chosen:
            self._chosen[names] = self._among(names)
        return self._chosen[names]

    def _among(self, names: frozenset[str]) -> AdapterSelection | None:
        chosen = [name for name in self._spans if name in names]
        if not chosen:
            return None
        rest = self._rows_of(name for name in self._spans if name not in names)
        if rest is None and len(chosen) == 1:
            # All rows are its own, however many a tensor has.
            return AdapterSelection(slice(None), ((chosen[0], slice(None)),), None)
        ends = (0, *accumulate(sum(end - start for start, end in self._spans[name]) for name in chosen))
        parts = tuple((name, slice(*ends[index : index + 2])) for index, name in enumerate(chosen))
        mine = self._rows_of(chosen)
        assert mine is not None
        return AdapterSelection(mine, parts, rest)

    def _rows_of(self, names: Iterable[str]) -> Tensor | None:
        """[n], int64: the rows of these, one after the other."""
        rows = [np.arange(*span) for name in names for span in self._spans[name]]
        return torch.from_numpy(np.concatenate(rows)).to(self._device, non_blocking=True) if rows else None


class Adapters:
    """The adapters of one model. rows: those of the pass that is running, None where nobody asks for one."""

    def __init__(self) -> None:
        self.rows: AdapterRows | None = None
        self._device = torch.device("cpu")

    def used(self, names: Sequence[str], counts: Sequence[int]) -> AbstractContextManager[None]:
        """A pass over rows of these sequences, see `AdapterRows`; no names for no adapters."""
        return self._using(AdapterRows(names, counts, self._device)) if any(names) else nullcontext()

    @contextmanager
    def _using(self, rows: AdapterRows) -> Iterator[None]:
        self.rows = rows
        try:
            yield
        finally:
            self.rows = None

    def attach(self, model: nn.Module, name: str, pairs: Mapping[str, LowRank], dtype: torch.dtype) -> int:
        """Put an adapter beside the model's weights, after these are packed. Returns the bytes that it takes.

        pairs: by the path of a linear in the model. dtype: to compute in.
        """
        joined: dict[str, dict[str, LowRank]] = {}
        taken = 0
        for path, pair in pairs.items():
            self._device = pair.down.device
            owner_path, _, leaf = path.rpartition(".")
            owner = model.get_submodule(owner_path)
            if isinstance(owner, Attention) and owner.merged is not None and leaf in _JOINED:
                joined.setdefault(owner_path, {})[leaf] = pair
                continue
            linear = owner.get_submodule(leaf)
            assert isinstance(linear, Linear)
            base = linear.packed or _Plain(linear.weight, linear.bias)
            linear.packed = adapted = self._adapted(base)
            taken += adapted.add(name, pair, dtype)
        for path, parts in joined.items():
            attention = model.get_submodule(path)
            assert isinstance(attention, Attention) and attention.merged is not None
            attention.merged = adapted = self._adapted(attention.merged)
            taken += adapted.add(name, _side_by_side(attention, parts), dtype)
        return taken

    def _adapted(self, base: ops.Product) -> AdaptedLinear:
        return base if isinstance(base, AdaptedLinear) else AdaptedLinear(base, self)


class AdaptedLinear:
    """A product that some rows go through with what an adapter adds.

    Every row has the numbers that it has alone: those without an adapter get the base's very own, and each product of
    an adapter is over its own rows.
    """

    def __init__(self, base: ops.Product, adapters: Adapters) -> None:
        self._base, self._adapters = base, adapters
        self._added: dict[str, tuple[torch.dtype, ops.Product, ops.Product]] = {}
        self._names: frozenset[str] = frozenset()

    def add(self, name: str, pair: LowRank, dtype: torch.dtype) -> int:
        """One more adapter. Returns the bytes that it takes."""
        packer = ops.packer(dtype, pair.down.device) or _Plain
        packed = [packer(one.to(dtype).contiguous(), None) for one in (pair.down, pair.up)]
        self._added[name] = (dtype, packed[0], packed[1])
        self._names = frozenset(self._added)
        return sum(one.nbytes for one in packed)

    def __call__(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor:
        """Like `Linear.forward`."""
        rows = self._adapters.rows
        chosen = None if rows is None else rows.among(self._names)
        if rows is None or chosen is None:
            return self._base(x, activation, times)
        assert isinstance(chosen.rows, slice) or len(x) == rows.count, "rows of another tensor than the pass's"
        asked = x[chosen.rows]
        if activation is None and times is None:
            y = self._base(x)
            changed = self._changed(y[chosen.rows], asked, chosen)
        else:
            # What is added comes before the activation, which the base's product has inside.
            changed = self._changed(self._base(asked), asked, chosen)
            if activation is not None:
                changed = activate(changed, activation)
            if times is not None:
                changed = changed * times[chosen.rows]
            y = changed
            if isinstance(chosen.rows, Tensor):
                y = changed.new_empty(len(x), changed.shape[1])
            if chosen.rest is not None:
                rest = chosen.rest
                y[rest] = self._base(x[rest], activation, None if times is None else times[rest])
        if isinstance(chosen.rows, Tensor):
            y[chosen.rows] = changed
        return y

    def _changed(self, y: Tensor, x: Tensor, chosen: AdapterSelection) -> Tensor:
        """Add to the base's product, in place, what each adapter makes of its rows. y: [n, out]. x: [n, in]; both of
        the base's dtypes, where a base that is rounded has bfloat16 around attention."""
        for name, part in chosen.parts:
            dtype, down, up = self._added[name]
            y[part] += up(down(x[part].to(dtype)))
        return y


class _Plain:
    """A weight as it lies, as a product. weight: [out, in], bias: [out] or None."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self._bias = weight, bias

    @property
    def nbytes(self) -> int:
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def __call__(self, x: Tensor, activation: Activation | None = None, times: Tensor | None = None) -> Tensor:
        y = ops.linear(x, self._weight, self._bias)
        if activation is not None:
            y = activate(y, activation)
        return y if times is None else y * times


def _side_by_side(attention: Attention, parts: Mapping[str, LowRank]) -> LowRank:
    """What is added to queries, keys and values as one product's; a factor that they share is there once."""
    config = attention.config
    heads = {"query": config.num_heads, "key": config.num_kv_heads, "value": config.num_kv_heads}
    starts = dict(zip(_JOINED, accumulate((0, heads["query"], heads["key"])), strict=True))
    downs: dict[int, Tensor] = {id(part.down): part.down for part in parts.values()}
    ends = (0, *accumulate(len(down) for down in downs.values()))
    columns = {key: slice(*ends[index : index + 2]) for index, key in enumerate(downs)}
    down = torch.cat(list(downs.values()))
    up = down.new_zeros(sum(heads.values()) * config.head_dim, len(down))
    for leaf, part in parts.items():
        start = starts[leaf] * config.head_dim
        up[start : start + len(part.up), columns[id(part.down)]] = part.up
    return LowRank(down, up)
