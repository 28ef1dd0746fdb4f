"""Round a matrix input by input. The errors so far correct the weights of the inputs that are not rounded yet.

Source: Frantar et al. 2022, arXiv:2210.17323 (GPTQ). The search for the step of a group weights errors by the size of
each input, as in Lin et al. 2023, arXiv:2306.00978 (AWQ), but moves no scale into the preceding operation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.checkpoint.quantizing.scale_search import codes_of, find_steps
from weights.quantized.write_compressed_tensors import Scheme
from weights.quantized_matrix import QuantizedMatrix

_DAMPING = 0.01
"""The mean square of all inputs, times this, is added to the mean square of each input. Inputs that are rare in the
texts are therefore rounded almost as they would be without texts."""
_COLUMNS_TOGETHER = 128
"""Number of inputs whose errors are collected before they correct the weights of all later inputs."""


def round_with_feedback(weight: Tensor, moment: Tensor, scheme: Scheme) -> QuantizedMatrix:
    """Round a matrix so that its products with typical inputs change little.

    weight: [out, in], any float dtype, finite.
    moment: [in, in], float32: products of all pairs of inputs, summed over the tokens of some texts.
    scheme: number of bits, and size of a group, which divides `in` and is a divisor or a multiple of 128.
    """
    assert scheme.group is not None
    rows, width = weight.shape
    damped = _damped(moment)
    importance, factor = damped.diagonal().clone(), _factor_of_inverse(damped)
    left = weight.float().T.contiguous()
    codes = torch.empty((width, rows), dtype=torch.int8)
    steps: list[Tensor] = []
    together = max(_COLUMNS_TOGETHER, scheme.group)
    for first in range(0, width, together):
        last = min(first + together, width)
        errors = torch.empty((last - first, rows))
        for index in range(first, last):
            if index % scheme.group == 0:
                group = slice(index, index + scheme.group)
                steps.append(find_steps(left[group].T.contiguous(), importance[group], scheme.bits))
            code = codes_of(left[index], steps[-1], scheme.bits)
            codes[index] = code.to(torch.int8)
            error = (left[index] - steps[-1] * code) / factor[index, index]
            errors[index - first] = error
            left[index + 1 : last] -= factor[index, index + 1 : last, None] * error
        left[last:] -= factor[first:last, last:].T @ errors
    return QuantizedMatrix(codes.T.contiguous(), scheme.bits, scheme.group, torch.stack(steps, 1))


def _damped(moment: Tensor) -> Tensor:
    mean = float(moment.diagonal().mean())
    return moment + torch.eye(len(moment)) * (_DAMPING * mean if mean > 0 else 1.0)


def _factor_of_inverse(moment: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of `moment`: [in, in].

    If rounding errors make the matrix indefinite, larger numbers are added to its diagonal.
    """
    for _ in range(4):
        lower, failed = torch.linalg.cholesky_ex(moment)
        if not failed:
            factor: Tensor
            factor, failed = torch.linalg.cholesky_ex(torch.cholesky_inverse(lower), upper=True)
            if not failed:
                return factor
        moment = moment + torch.eye(len(moment)) * 10 * _DAMPING * moment.diagonal().mean()
    raise AssertionError("a matrix of sums of squares with a large diagonal has a Cholesky factor")
