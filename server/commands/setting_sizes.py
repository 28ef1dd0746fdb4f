"""The memory of a model's weights with each setting, which `triptych check` prints. Imports torch only when it runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from server.model_sources import resolved
from server.settings.entries import split_entry
from server.settings.settings import Settings

_SIZES_PER_ROW = 4
"""Number of sizes in a row of the table."""


def setting_sizes(entry: str, settings: Settings) -> Mapping[str, int]:
    """Return the bytes of a model's weights with each setting: float32, bfloat16, and each value of `--quantize`.

    Empty if the sizes cannot be computed.

    entry: `[NAME=]PATH_OR_HUB_ID` of a checkpoint that has been checked.
    """
    import torch

    from models.checkpoint.setting_sizes import setting_sizes
    from models.config import ConfigError

    try:
        source = split_entry(entry)[1]
    except ValueError:  # as for the check: a single checkpoint needs no name
        source = entry
    dtype = torch.float32 if settings.dtype == "auto" else getattr(torch, settings.dtype)
    try:
        return setting_sizes(resolved(source), dtype)
    except ConfigError:  # the worker that checked it has models of its own
        return {}


def size_rows(found: Mapping[str, int]) -> Sequence[tuple[str, str]]:
    """Return the rows, (name, text), that list the sizes in a table. found: bytes, by the name of the setting."""
    sizes = [f"{name} {size / 2**20:,.1f} MiB" for name, size in found.items()]
    rows = [", ".join(sizes[first : first + _SIZES_PER_ROW]) for first in range(0, len(sizes), _SIZES_PER_ROW)]
    return [("sizes" if index == 0 else "", row) for index, row in enumerate(rows)]
