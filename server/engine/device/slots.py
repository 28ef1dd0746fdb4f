"""Computes the cache slots and the padded block tables of rows, as integers to copy to the device."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

Ids = NDArray[np.int64]


def slots_of(table: Sequence[int], start: int, end: int, block_size: int) -> list[int]:
    """Cache slots of the tokens start..end-1 of a sequence with block table `table`."""
    first = start // block_size
    blocks = [block * block_size for block in table[first : -(-end // block_size)]]
    slots = [slot for block in blocks for slot in range(block, block + block_size)]
    return slots[start - first * block_size : end - first * block_size]


def padded_tables(tables: Sequence[Sequence[int]]) -> Ids:
    """Block tables as one array: [rows, blocks], int64. Shorter tables are padded with their own first block.

    Attention may read padding, and every row may read its own first block.
    """
    blocks, width = np.fromiter(chain.from_iterable(tables), np.int64), max(map(len, tables))
    if len(blocks) == len(tables) * width:
        return blocks.reshape(len(tables), width)
    lengths, places = np.array(list(map(len, tables))), np.arange(width)
    starts = (np.cumsum(lengths) - lengths)[:, None]
    padded: Ids = blocks[np.where(places < lengths[:, None], starts + places, starts)]
    return padded
