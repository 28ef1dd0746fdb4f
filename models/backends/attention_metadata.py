"""Describe the attention of one step, independent of the device: lengths, pattern, score bias and block tables.

Each backend converts this metadata into a view, the form that its kernels read. `backends/torch/attention_view.py` has
the view of the torch reference, `backends/cpu/attention_view.py` the view of the CPU kernels.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, Protocol, TypeVar

from torch import Tensor


class AttentionView(Protocol):
    """Attention metadata in the form that a backend's kernels read.

    reads_bias: whether the view contains bias values.
    """

    reads_bias: ClassVar[bool]


View = TypeVar("View", bound=AttentionView)


@dataclass(frozen=True)
class KeyBias:
    """A score bias by the position of the key, the same for all queries. values: [heads, length], model dtype."""

    values: Tensor


def bias_float32(score_bias: Tensor | KeyBias | None) -> Tensor | None:
    """The values of a score bias as the kernels read them: float32, contiguous; None without a bias."""
    values = score_bias.values if isinstance(score_bias, KeyBias) else score_bias
    return None if values is None else values.float().contiguous()


@dataclass(frozen=True)
class Distances:
    """One vector per distance between positions, for disentangled attention.

    A distance is `query position - key position`.

    vectors: [rows, hidden], model dtype.
    row_of: [2 * length - 1], int64: element `d + length - 1` is the row of `vectors` that belongs to distance d.
    """

    vectors: Tensor
    row_of: Tensor


@dataclass(frozen=True)
class AttentionMetadata:
    """Which keys each query of a step sees, and where the keys are.

    Layers with the same attention pattern share one instance.

    query_lens, key_lens: for each row, its number of queries and its number of keys. The queries are at the last
        positions of their row, unless `query_starts` is set. A row may have no queries.
    causal: queries see no later keys.
    window: a query sees its own position and the `window - 1` before it; without `causal` also the `window - 1` after
        it. None: no limit.
    score_bias: [heads, 2 * length - 1], model dtype: bias of distance `key - query` at index `distance + length - 1`;
        or a KeyBias; or None.
    block_tables: [rows, blocks], int64: blocks of each row in a paged cache; None for ragged keys.
    block_size: token slots of a block; 0 for ragged keys.
    distances: the vectors of distances, for disentangled attention only; else None.
    query_starts: position of each row's first query, for ragged keys only; None where the queries end with the keys.
    chunk: with `causal` only: positions are divided into chunks of this size, and a query sees no keys of earlier
        chunks. None: all keys.
    key_starts: index of each row's first key, for ragged keys only; None where the keys of a row follow those of the
        row before it.
    """

    query_lens: tuple[int, ...]
    key_lens: tuple[int, ...]
    causal: bool = False
    window: int | None = None
    score_bias: Tensor | KeyBias | None = None
    block_tables: Tensor | None = None
    block_size: int = 0
    distances: Distances | None = None
    query_starts: tuple[int, ...] | None = None
    chunk: int | None = None
    key_starts: tuple[int, ...] | None = None
    _views: dict[type, Any] = field(default_factory=dict, repr=False)
    _shared_views: dict[type, Any] = field(default_factory=dict, repr=False)

    def view(self, kind: type[View], *arguments: Any) -> View:
        """Return the view of class `kind`.

        The first call creates it with `kind(self, *arguments)`; later calls return the same view.
        """
        views = self._views if kind.reads_bias else self._shared_views
        if kind not in views:
            views[kind] = kind(self, *arguments)  # type: ignore[call-arg]
        view: View = views[kind]
        return view

    def set_view(self, view: AttentionView) -> None:
        """Store a view that was made elsewhere, so that `view` returns it instead of creating one.

        The view must contain no bias.
        """
        self._shared_views[type(view)] = view

    def with_bias(self, score_bias: Tensor) -> AttentionMetadata:
        """The same metadata with another bias of the same shape. Views that do not read the bias are shared."""
        return replace(self, score_bias=score_bias, _views={})

    @cached_property
    def first_positions(self) -> tuple[int, ...]:
        """Position of each row's first query."""
        ends = zip(self.key_lens, self.query_lens, strict=True)
        return tuple(end - count for end, count in ends) if self.query_starts is None else self.query_starts

    @cached_property
    def bias_float32(self) -> Tensor | None:
        """The score bias: [heads, distances or keys], float32, contiguous; or None."""
        return bias_float32(self.score_bias)
