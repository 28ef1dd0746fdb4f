"""The compiled kernels behind the same functions as `torch_choice`: float32 on a CPU."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from models.ops import library
from models.ops.torch_choice import Survey


def survey(logits: Tensor, count: int, with_log_sums: bool) -> Survey:
    """See `torch_choice.survey`."""
    rows, width = logits.shape
    if logits.stride(1) != 1:
        logits = logits.contiguous()
    values, ids = torch.empty(rows, count), torch.empty(rows, count, dtype=torch.int64)
    log_sums = torch.empty(rows) if with_log_sums else None
    finite = torch.empty(rows, dtype=torch.bool)
    task = library.SurveyTask(
        logits.data_ptr(),
        logits.stride(0),
        width,
        count,
        values.data_ptr(),
        ids.data_ptr(),
        None if log_sums is None else log_sums.data_ptr(),
        finite.data_ptr(),
    )
    loaded = library.load()
    assert loaded is not None
    loaded.triptych_survey(ctypes.byref(task), rows)
    return Survey(values, ids, log_sums, finite)
