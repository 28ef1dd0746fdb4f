"""Number of rows from which products with a quantised weight round their rows: measured once per card, kept in a file.

With few rows, reading the weight takes longest, and the weight is dequantised in registers. With many rows this
conversion takes longest, so the rows are rounded instead, and 8-bit numbers are multiplied (`kernels.rounded_rows`).
The number of rows at which rounding becomes faster (the crossover) depends on the device. Products of experts have a
crossover of their own, in rows per expert.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from models.backends.cuda.kernels.rounded_rows import RoundedRows, round_rows
from models.backends.cuda.product_timing import ProductTimer, WeightKind

log = logging.getLogger("triptych.models")

ROW_COUNTS = (2, 4, 8, 16, 32, 64, 128, 256, 512)
"""Numbers of rows at which products with and without rounding are timed."""
NEVER = 1 << 62
"""A crossover that no step reaches: rows are never rounded."""
_MIN_GAIN = 0.97
"""Rows are rounded only if the product then takes less than this part of its time without rounding."""
_FP8_CAPABILITY = (8, 9)
"""Lowest compute capability with matrix instructions for fp8."""

TimeOf = Callable[[int, bool], float]
"""Function that times a product. Arguments: number of rows, and whether they are rounded. Returns seconds."""


class RowRounding(NamedTuple):
    """When and how the rows of products with a quantised weight are rounded.

    kind: kind of the weight. from_rows: smallest number of rows that are rounded; for experts, rows per expert.
    """

    kind: WeightKind
    from_rows: int

    @classmethod
    def of(cls, kind: WeightKind, device: torch.device, fixed_order: bool, of_experts: bool = False) -> RowRounding:
        """The measured choice for a device.

        fixed_order: whether a row must have the same bits for every number of rows. Rows are then never rounded.
        of_experts: whether to choose for the products of experts.
        """
        return cls(kind, NEVER if fixed_order else rounds_from(kind, device, of_experts))

    def apply(self, x: Tensor, rows: float) -> Tensor | RoundedRows:
        """Round the rows of a product if `rows` is at least `from_rows`.

        x: [.., in], contiguous. rows: number of rows; for experts, mean number of rows per expert.
        """
        if rows < self.from_rows:
            return x
        return round_rows(x, "fp8" if self.kind == "fp8" else "int8", 2 if self.kind in ("int8", "int4") else 1)


def crossover(time_of: TimeOf) -> int:
    """The smallest measured number of rows at which rounding is faster; `NEVER` if there is none.

    Rounding must be faster at all larger measured numbers of rows too.
    """
    found = NEVER
    for rows in reversed(ROW_COUNTS):
        if time_of(rows, True) >= _MIN_GAIN * time_of(rows, False):
            break
        found = rows
    return found


def read_or_measure(path: Path, card: str, kind: str, time_of: TimeOf) -> int:
    """The crossover of a card from a file; if it has none, the crossover is measured, and written to the file.

    path: JSON file with an object of crossovers by kind, for each card. If it cannot be read or written, the crossover
        is measured at each start.
    card: name of the card and versions of the kernels.
    """
    tables: dict[str, dict[str, int]] = {}
    try:
        read = json.loads(path.read_text())
        tables = {name: dict(table) for name, table in read.items()}
        return int(tables[card][kind])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        found = crossover(time_of)
    tables[card] = tables.get(card, {}) | {kind: found}
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = path.with_suffix(f".{os.getpid()}")
        scratch.write_text(json.dumps(tables, indent=1))
        scratch.replace(path)
    except OSError as error:
        log.warning("cannot keep the measured crossover of products in %s: %s", path, error)
    return found


@cache
def rounds_from(kind: WeightKind, device: torch.device, of_experts: bool) -> int:
    """The smallest number of rows that products with this kind of weight round on a device.

    of_experts: whether to choose for the products of experts. The result is then in rows per expert.
    """
    if device.type != "cuda":
        return NEVER
    capability = torch.cuda.get_device_capability(device)
    if kind == "fp8" and capability < _FP8_CAPABILITY:
        return NEVER
    card = f"{torch.cuda.get_device_name(device)}, {capability[0]}.{capability[1]}, {_kernels_version()}"
    name = f"{kind} experts" if of_experts else kind
    found = read_or_measure(_path(), card, name, ProductTimer(device, kind, of_experts).seconds)
    log.info("products with weights in %s round their rows from %s rows on", name, found if found < NEVER else "no")
    return found


def _kernels_version() -> str:
    """A text that changes with the code of the kernels and with the versions of torch and triton."""
    import triton

    kernels = sorted((Path(__file__).parent / "kernels").glob("*.py"))
    code = b"".join(path.read_bytes() for path in kernels)
    versions = f"torch {torch.__version__}, triton {triton.__version__}"
    return f"{versions}, {hashlib.sha256(code).hexdigest()[:12]}"


def _path() -> Path:
    """The file with the crossovers: in XDG_CACHE_HOME, by default ~/.cache."""
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(base).expanduser() / "triptych" / "cuda-products.json"
