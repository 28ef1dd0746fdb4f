"""Float weights of linear layers on a CUDA device. A Triton kernel multiplies one row, cuBLAS multiplies more rows.

With `--batch-invariant`, another Triton kernel multiplies any number of rows.

Importing this file imports triton.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from models.backends.cuda.experts import ExpertProduct
from models.backends.cuda.kernels.fixed_order_linear import fixed_order_linear
from models.backends.cuda.kernels.row_products import dense_row
from models.backends.torch.activations import activate
from models.backends.torch.backend import TORCH
from models.config import Activation

_HAS_FLOAT32_PRODUCTS = hasattr(torch.ops.aten.mm, "dtype")
"""Whether this torch has products of half-precision matrices with a float32 result."""


class CudaDenseWeight:
    """A float weight in the layout of torch. Implements `LinearWeight`.

    weight: [out, in], contiguous. bias: [out] or None.
    out_dtype: dtype of the products: the dtype of the weight, or float32.
    fixed_order: whether a row of a product has the same bits for every number of rows.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype, fixed_order: bool = False) -> None:
        self._weight, self._bias, self._out_dtype, self._fixed_order = weight, bias, out_dtype, fixed_order

    @property
    def nbytes(self) -> int:
        """Bytes of weight and bias."""
        return self._weight.nbytes + (0 if self._bias is None else self._bias.nbytes)

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute `activation(x W^T + b) * multiplier`.

        x: [rows, in], model dtype. multiplier: [rows, out], dtype of the result.
        out: [rows or more, out], contiguous: memory for the result; None for new memory.
        Returns [rows, out].
        """
        y = self._product(x, None if out is None else out[: x.shape[0]])
        product = y if activation is None else activate(y, activation)
        product = product if multiplier is None else product * multiplier
        return product if out is None or product.data_ptr() == out.data_ptr() else out[: x.shape[0]].copy_(product)

    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight, for an embedding that is tied to it. index: [n], int64 -> [n, in]."""
        return TORCH.sum_of_rows([(index, self._weight)])

    def slice(self, first: int, end: int) -> CudaDenseWeight:
        """The output features first..end-1 as a weight in the same memory."""
        bias = None if self._bias is None else self._bias[first:end]
        return CudaDenseWeight(self._weight[first:end], bias, self._out_dtype, self._fixed_order)

    def of_experts(self, num_experts: int) -> ExpertProduct:
        """The weight of all experts of a layer, divided into experts."""
        bias = None if self._bias is None else self._bias.view(num_experts, -1)
        return ExpertProduct(self._weight.view(num_experts, -1, self._weight.shape[1]), bias)

    def _product(self, x: Tensor, out: Tensor | None) -> Tensor:
        """`x W^T + b`. out: [rows, out], memory that the result may use, but need not; None for new memory."""
        if x.shape[0] == 1 or self._fixed_order:
            y = x.new_empty(x.shape[0], self._weight.shape[0], dtype=self._out_dtype) if out is None else out
            multiply = fixed_order_linear if self._fixed_order else dense_row
            return multiply(x.contiguous(), self._weight, self._bias, y)
        if self._out_dtype == self._weight.dtype:
            return F.linear(x, self._weight, self._bias)
        if _HAS_FLOAT32_PRODUCTS:
            y = torch.mm(x, self._weight.T, out_dtype=self._out_dtype, out=out)
            return y if self._bias is None else y.add_(self._bias)
        return F.linear(x, self._weight, self._bias).to(self._out_dtype)
