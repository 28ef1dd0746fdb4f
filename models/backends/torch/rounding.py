"""Search for the scales of weights in groups of 32, and round the weights to codes, by torch operations.

`models.backends.cpu.rounding` has the same functions in compiled kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

GROUP = 32
"""Number of weights that share a scale. Larger groups change a model's results more than llama.cpp's formats do. See
docs/decisions/0132-int8-in-groups.md."""
LARGEST_4_BIT_CODE = 15
_CANDIDATES = 5
"""Number of step sizes that are tried for each group with a minimum: the range of the group divided by 14 to 16. With
21 candidates the error is 1% smaller, and the search takes three times as long."""
_LARGEST_6_BIT_CODES = (32, 31.625, 31.25, 30.875, 30.5)
"""Divisors. Each gives a step size to try: the number of largest magnitude in a group, divided by minus the divisor."""


class Rounding:
    """Computes scales and codes for weights in groups, by torch operations. Subclasses use faster code.

    x: in all methods, [rows, groups, GROUP], float32.
    """

    def two_levels(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Scale and minimum of each group, for codes from 0 to 15: two tensors, [rows, groups].

        `quantize_two_levels` rounds both to integer multiples of shared units, the second level of scales.
        A number is about `scale * code - minimum`. Several pairs of scale and minimum are tried, and the pair with the
        smallest weighted squared error is chosen. In this error, the weight of a number is its magnitude plus the root
        mean square of its group. A group with NaN or infinity has a scale or a minimum that is not finite.

        Source: `make_qkx2_quants` in `ggml-quants.c` of https://github.com/ggml-org/ggml.
        """
        weights = x.square().mean(2, keepdim=True).sqrt() + x.abs()
        low, high = x.amin(2, keepdim=True).clamp(max=0), x.amax(2, keepdim=True)
        total, sum_x = weights.sum(2), (weights * x).sum(2)
        best = torch.full_like(total, torch.inf)
        # Results for groups in which no candidate is valid: groups with NaN or infinity, and groups of zeros.
        scale, minimum = (high - low)[:, :, 0] / LARGEST_4_BIT_CODE, -low[:, :, 0]
        for number in range(_CANDIDATES):
            steps = (high - low) / (LARGEST_4_BIT_CODE - 1 + 2 * number / (_CANDIDATES - 1))
            codes = _multiples(x - low, steps, 0, LARGEST_4_BIT_CODE)
            weighted = weights * codes
            sum_codes, sum_squares, sum_products = weighted.sum(2), (weighted * codes).sum(2), (weighted * x).sum(2)
            determinant = total * sum_squares - sum_codes.square()
            one = (total * sum_products - sum_x * sum_codes) / determinant
            offset = (sum_squares * sum_x - sum_codes * sum_products) / determinant
            # A minimum above zero cannot be stored.
            is_positive = offset > 0
            one = torch.where(is_positive, sum_products / sum_squares, one)
            offset = torch.where(is_positive, 0.0, offset)
            error = (weights * (one[:, :, None] * codes + offset[:, :, None] - x).square()).sum(2)
            is_better = (determinant > 0) & (error < best)
            best = torch.where(is_better, error, best)
            scale, minimum = torch.where(is_better, one, scale), torch.where(is_better, -offset, minimum)
        return scale, minimum

    def six_bits(self, x: Tensor) -> Tensor:
        """Scale of each group, for codes from -32 to 31: [rows, groups].

        Several scales are tried, and the scale with the smallest weighted squared error is chosen. In this error, the
        weight of a number is its square. A group with NaN or infinity has a scale that is not finite.

        Source: `make_qx_quants` in `ggml-quants.c` of https://github.com/ggml-org/ggml.
        """
        largest, weights = x.gather(2, x.abs().argmax(2, keepdim=True)), x.square()
        # Results for groups in which no candidate is valid: groups with NaN or infinity, and groups of zeros.
        found, best = largest / -32, torch.zeros_like(largest)
        for code in _LARGEST_6_BIT_CODES:
            rounded = _multiples(x, largest / -code, -32, 31)
            weighted = weights * rounded
            products, squares = (weighted * x).sum(2, keepdim=True), (weighted * rounded).sum(2, keepdim=True)
            gain = products.square() / squares
            is_better = gain > best
            best, found = torch.where(is_better, gain, best), torch.where(is_better, products / squares, found)
        return found[..., 0]

    def codes(self, x: Tensor, scales: Tensor, minimums: Tensor | None, least: int, most: int) -> Tensor:
        """Divide numbers by the scale of their group and round to integers, ties to even. Returns int8 codes like x.

        scales: [rows, groups]; a scale of zero counts as one. minimums: [rows, groups], added to the numbers first.
        least, most: limits of the codes. NaN becomes 0.
        """
        raised = x if minimums is None else x + minimums[:, :, None]
        return _multiples(raised, scales[:, :, None], least, most).to(torch.int8)


TORCH = Rounding()


def _multiples(x: Tensor, steps: Tensor, least: int, most: int) -> Tensor:
    return (x / torch.where(steps == 0, 1.0, steps)).round_().nan_to_num_().clamp_(least, most)
