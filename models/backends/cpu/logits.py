"""The compiled kernels behind the same functions as `torch_choice` and `torch_sampling`: float32 on a CPU."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.backends.cpu import library
from models.backends.cpu.library import Kind
from models.backends.torch.logits import Survey
from models.backends.torch.sampling import Drawn, Filters, temperatures


def survey(logits: Tensor, count: int, with_log_sums: bool) -> Survey:
    """See `torch_choice.survey`."""
    rows, width = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    seen = Survey.empty(rows, count, with_log_sums)
    task = library.SurveyTask(logits.data_ptr(), rows, logits.stride(0), width, **survey_fields(seen))
    library.do(Kind.SURVEY, logits.dtype, task)
    return seen


def survey_fields(seen: Survey) -> dict[str, int]:
    """The fields of a `SurveyTask` that say where what is seen goes, and how much of it is wanted."""
    return {
        "count": seen.ids.shape[1],
        "values": seen.values.data_ptr(),
        "ids": seen.ids.data_ptr(),
        "log_sums": 0 if seen.log_sums is None else seen.log_sums.data_ptr(),
        "finite": seen.finite.data_ptr(),
    }


def draw(logits: Tensor, rows: Sequence[Filters], uniforms: NDArray[np.float64]) -> Drawn:
    """See `torch_sampling.draw`."""
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    drawn = Drawn(torch.empty(len(rows), dtype=torch.int64), torch.empty(len(rows)), torch.empty(len(rows)))
    settings = (
        temperatures(rows),
        torch.tensor([row.top_k for row in rows]),
        torch.tensor([row.top_p for row in rows], dtype=torch.float64),
        torch.tensor([row.min_p for row in rows]).log_(),
        torch.tensor([row.typical_p for row in rows], dtype=torch.float64),
        torch.from_numpy(uniforms),
    )
    task = library.DrawTask(
        logits.data_ptr(),
        len(rows),
        logits.stride(0),
        logits.shape[1],
        *(column.data_ptr() for column in settings),
        *(part.data_ptr() for part in drawn),
    )
    library.do(Kind.DRAW, logits.dtype, task)
    return drawn
