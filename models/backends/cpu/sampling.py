"""Top-k logits and random sampling by compiled kernels: float32 on a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cpu.operations import run
from models.backends.cpu.programs.inputs import ProgramInput
from models.backends.logits import LogitsTopK
from models.backends.torch.sampling import Drawn, Filters, TorchSampling, temperatures


def write_top_k(logits: Tensor, k: int | ProgramInput, result: Mapping[str, Any]) -> None:
    """Compute the top k of `logits` and write them to `result`.

    If logits are symbolic, k and the results are program inputs.

    result: memory for the results, by the field names of `LogitsTopK`.
    """
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    run(
        "logits_top_k",
        logits.dtype,
        logits,
        logits=logits,
        rows=logits.shape[0],
        stride=logits.stride(0),
        width=logits.shape[1],
        count=k,
        **result,
    )


class CpuSampling(TorchSampling):
    """Top-k logits and random choice of tokens by compiled kernels."""

    def logits_top_k(self, logits: Tensor, k: int = 1, with_logsumexp: bool = False) -> LogitsTopK:
        result = LogitsTopK.empty(logits.shape[0], k, with_logsumexp)
        write_top_k(logits, k, result._asdict())
        return result

    def draw(self, logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
        if logits.stride(1) != 1:
            logits = logits.contiguous()
        drawn = Drawn(torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows)), torch.empty(len(rows)))
        run(
            "draw",
            logits.dtype,
            logits,
            logits=logits,
            rows=len(rows),
            stride=logits.stride(0),
            width=logits.shape[1],
            temperatures=temperatures(rows),
            top_ks=torch.tensor([row.top_k for row in rows]),
            top_ps=torch.tensor([row.top_p for row in rows], dtype=torch.float64),
            log_min_ps=torch.tensor([row.min_p for row in rows]).log_(),
            typical_ps=torch.tensor([row.typical_p for row in rows], dtype=torch.float64),
            uniforms=torch.from_numpy(uniforms),
            tokens=drawn.tokens,
            lowest=drawn.lowest,
            highest=drawn.highest,
        )
        return drawn
