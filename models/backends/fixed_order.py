"""Whether sums on a CUDA device have one order for all numbers of rows, as `--batch-invariant` asks.

A request then gives the same bits alone and in a batch. The compiled CPU kernels always give the same bits.
"""

from __future__ import annotations

enabled = False
"""Set by `models.backends.choice`, before models are loaded."""
