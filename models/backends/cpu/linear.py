"""Linear weights in the layouts of the compiled kernels: float32, bfloat16 and int8 on a CPU.

Each row of a product has the same bits for every number of rows.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor

from models.backends.cpu import library
from models.backends.cpu.expert_groups import ExpertGroups
from models.backends.cpu.operations import run
from models.backends.cpu.programs.trace import SymbolicTensor
from models.backends.huge_pages import empty_in_huge_pages
from models.backends.tensor_memory import PRIVATE, TensorMemory
from models.backends.torch.quantization import quantize_int8
from models.config import Activation
from weights.quantized_matrix import QuantizedMatrix

PANEL = 32
"""Output channels of one panel, `PANEL` of `kernels/kernels.h`."""


class CpuWeight(ABC):
    """Base class of the weight layouts: runs products with their epilogue, and slices output channels.

    Implements `LinearWeight`.

    shape: [out, in]. dtype: dtype of the original weight. bias: [out] or None.
    padded: number of values that one output channel takes in memory, padding included.
    out_dtype: dtype of results, multipliers and residuals; None for the dtype of the weight.
    memory: the memory in which the bias and the packed tensors are stored.
    """

    _weight: Tensor

    def __init__(
        self,
        shape: Sequence[int],
        dtype: torch.dtype,
        bias: Tensor | None,
        padded: int,
        out_dtype: torch.dtype | None,
        memory: TensorMemory,
    ) -> None:
        self._columns, self._width = shape
        self._padded, self._dtype, self._out_dtype = padded, dtype, out_dtype or dtype
        self._bias = None if bias is None else memory.keep(bias.float().contiguous())

    @property
    def nbytes(self) -> int:
        """Bytes of the weight, the bias and the scales."""
        return sum(part.nbytes for part in vars(self).values() if isinstance(part, Tensor))

    def multiply(
        self,
        x: Tensor,
        activation: Activation | None = None,
        multiplier: Tensor | None = None,
        out: Tensor | None = None,
    ) -> Tensor:
        """Compute `activation(x W^T + b) * multiplier` by a kernel.

        x: [rows, in], model dtype. multiplier: [rows, out], dtype of the result.
        out: [rows or more, out], contiguous: memory for the result; None for new memory.
        Returns [rows, out].
        """
        if x.stride(1) != 1:
            x = x.contiguous()
        if multiplier is not None and multiplier.stride(1) != 1:
            multiplier = multiplier.contiguous()
        rows = x.shape[0]
        if out is None:
            y = x.new_empty((rows, self._columns), dtype=self._out_dtype)
        else:
            y = out if isinstance(out, SymbolicTensor) else out[:rows]
            assert y.stride(0) == self._columns == y.shape[1] and y.dtype == self._out_dtype
        fields = self._constant_fields.copy()
        if multiplier is not None:
            fields["multiplier"], fields["multiplier_stride"] = multiplier, multiplier.stride(0)
        if activation is not None:
            fields["activation"] = library.ACTIVATION_CODES[activation]
        fields["out"], fields["rows"] = y, rows
        self._multiply(x, fields)
        return y

    @cached_property
    def _constant_fields(self) -> dict[str, Any]:
        """Fields of the product's struct that are the same in every call, and default values for optional fields."""
        return {
            "weight": self._weight,
            "bias": self._bias,
            "multiplier": None,
            "multiplier_stride": 0,
            # A trace sets the residual when it fuses a sum into this product.
            "residual": None,
            "residual_stride": 0,
            "out_stride": self._columns,
            "columns": self._columns,
            "activation": library.ACTIVATION_CODES[None],
            **self._layout_fields(),
        }

    def multiply_experts(
        self,
        x: Tensor,
        groups: ExpertGroups,
        columns: int,
        activation: Activation | None = None,
        is_gated: bool = False,
        limit: float | None = None,
        offset: float = 0.0,
    ) -> Tensor:
        """Multiply rows by the weights of their experts.

        This weight has the output channels of all experts, one expert after another.

        x: [tokens, in], or [tokens, choices, in] in the sorted order of `groups`, contiguous.
        groups: the rows of each expert.
        columns: output channels of one expert. In this weight they are padded to whole panels.
        activation: activation of the result, or of the gate.
        is_gated: each panel of a gate is followed by the panel of the values that it multiplies.
        limit: the gate is clipped to at most `limit`, and the values to [-limit, limit]. None for no clipping.
        offset: added to the values after clipping.
        Returns [tokens, choices, columns], in the sorted order of `groups`.
        """
        tokens, choices = groups.order.shape
        out = x.new_empty((tokens, choices, columns), dtype=self._out_dtype)
        assert x.dtype == out.dtype
        fields = self._constant_fields | {
            "inputs": x,
            "input_stride": x.stride(-2) if x.dim() == 3 else x.stride(0),
            "order": groups.order if x.dim() == 2 else None,
            "choices": choices,
            "tasks": groups.tasks,
            "num_tasks": groups.num_tasks,
            "is_gated": is_gated,
            "limit": math.inf if limit is None else float(limit),
            "offset": float(offset),
            "activation": library.ACTIVATION_CODES[activation],
            "x": None,
            "rows": tokens,
            "width": self._width,
            "out": out,
            "out_stride": columns,
            "columns": columns,
        }
        self._multiply_experts(x, fields)
        return out

    def slice(self, first: int, end: int) -> Self | None:
        """The output features first..end-1 as a weight in the same memory. None where `first` is inside a panel."""
        if first % PANEL:
            return None
        found = copy(self)
        vars(found).pop("_constant_fields", None)
        found._columns, found._weight = end - first, self._weight[first * self._padded :]
        found._bias = None if self._bias is None else self._bias[first:end]
        return found

    def _rows(self, operation: str, index: Tensor, scales: Tensor | None) -> Tensor:
        index = index.contiguous()
        out = index.new_empty((index.shape[0], self._width), dtype=self._dtype)
        run(
            operation,
            self._dtype,
            index,
            weight=self._weight,
            scales=scales,
            columns=self._columns,
            width=self._width,
            index=index,
            count=index.shape[0],
            out=out,
        )
        return out

    @abstractmethod
    def _layout_fields(self) -> dict[str, Any]:
        """The fields of the product's struct that only this layout has and that are the same in every call."""

    @abstractmethod
    def _multiply(self, x: Tensor, fields: dict[str, Any]) -> None:
        """Run the product of `x` and this weight.

        x: [rows, in]; the elements of a row are contiguous.
        fields: the fields of the kernel's struct, except the fields that describe `x`.
        """

    @abstractmethod
    def _multiply_experts(self, x: Tensor, fields: dict[str, Any]) -> None:
        """Run the products of experts.

        x: [tokens, in], or [tokens, choices, in] in the sorted order of `groups`, contiguous.
        fields: fields of the operation's struct that all layouts share. The subclass adds the fields of its layout.
        """

    @abstractmethod
    def rows(self, index: Tensor) -> Tensor:
        """Rows of the weight as floats, for an embedding that is tied to it. index: [n], int64 -> [n, in].

        Raises IndexError for an index outside the weight.
        """


class FloatWeight(CpuWeight):
    """A weight in panels of channels (`kernels/float_linear.h`), or in torch's layout.

    In torch's layout it shares the memory of `weight` if that is contiguous.

    weight: [out, in], float32 or bfloat16. bias: [out] or None. is_packed: False keeps torch's layout.
    out_dtype: dtype of products: float32, or None for the dtype of the weight. Both layouts give the same bits.
    memory: keeps the packed weight and the bias.
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        is_packed: bool = True,
        out_dtype: torch.dtype | None = None,
        memory: TensorMemory = PRIVATE,
    ) -> None:
        assert out_dtype in (None, weight.dtype, torch.float32), f"a product of {weight.dtype} cannot give {out_dtype}"
        group = 4 // weight.element_size()
        super().__init__(weight.shape, weight.dtype, bias, -(-weight.shape[1] // group) * group, out_dtype, memory)
        self._is_packed, self._weight = is_packed, weight.contiguous()
        if is_packed:
            packed = empty_in_huge_pages(-(-self._columns // PANEL) * PANEL * self._padded, weight)
            if not weight.is_meta:
                library.loaded().triptych_pack_floats(
                    library.DTYPE_CODES[weight.dtype],
                    self._weight.data_ptr(),
                    self._columns,
                    self._width,
                    packed.data_ptr(),
                )
            self._weight = memory.keep(packed)

    def rows(self, index: Tensor) -> Tensor:
        assert self._is_packed
        return self._rows("unpack_rows", index, None)

    def _layout_fields(self) -> dict[str, Any]:
        return {
            "width": self._width,
            "row_bytes": self._width * self._dtype.itemsize,
            "is_packed": self._is_packed,
            "out_dtype": library.DTYPE_CODES[self._out_dtype],
        }

    def _multiply(self, x: Tensor, fields: dict[str, Any]) -> None:
        run("float_linear", x.dtype, x, x=x, stride=x.stride(0), **fields)

    def _multiply_experts(self, x: Tensor, fields: dict[str, Any]) -> None:
        assert self._is_packed
        run("float_experts", x.dtype, x, stride=0, **fields)


def is_int8(matrix: QuantizedMatrix) -> bool:
    """Whether a matrix has the form of `Int8Weight`: signed codes, one scale per output feature, no minimums."""
    whole_rows = matrix.scales.shape[1] == 1 and matrix.minimums is None
    return matrix.codes.dtype == torch.int8 and matrix.bits == 8 and whole_rows


class Int8Weight(CpuWeight):
    """int8 weights with a scale per output channel.

    Products round each row of x to int8 with one scale; integer sums are exact.

    weight: [out, in], any float dtype, or a quantised matrix for which `is_int8` is true. bias: [out] or None.
    out_dtype: dtype of products, float32 or bfloat16; None for `dtype`.
    memory: keeps the packed weight, the bias, the scales and the offsets.
    dtype: dtype of the rows that `rows` returns; None for the dtype of the weight. A quantised matrix needs it.
    Source: Dettmers et al. 2022, arXiv:2208.07339, section 2 (vector-wise quantisation).
    """

    def __init__(
        self,
        weight: Tensor | QuantizedMatrix,
        bias: Tensor | None,
        out_dtype: torch.dtype | None = None,
        memory: TensorMemory = PRIVATE,
        dtype: torch.dtype | None = None,
    ) -> None:
        like = weight.codes if isinstance(weight, QuantizedMatrix) else weight
        super().__init__(weight.shape, dtype or like.dtype, bias, -(-weight.shape[1] // 4) * 4, out_dtype, memory)
        packed = empty_in_huge_pages(-(-self._columns // PANEL) * PANEL * self._padded, like, torch.int8)
        offsets = like.new_empty(self._columns, dtype=torch.int32)
        scales = like.new_empty(self._columns, dtype=torch.float32)
        if not weight.is_meta:
            if isinstance(weight, QuantizedMatrix):
                rounded, scales = weight.codes.contiguous(), weight.scales[:, 0].contiguous()
            else:
                rounded, scales = quantize_int8(weight)
            library.loaded().triptych_pack_int8(
                rounded.data_ptr(), self._columns, self._width, packed.data_ptr(), offsets.data_ptr()
            )
        self._weight, self._offsets, self._scales = memory.keep(packed), memory.keep(offsets), memory.keep(scales)

    def slice(self, first: int, end: int) -> Self | None:
        found = super().slice(first, end)
        if found is not None:
            found._offsets, found._scales = self._offsets[first:end], self._scales[first:end]
        return found

    def rows(self, index: Tensor) -> Tensor:
        return self._rows("unpack_int8_rows", index, self._scales)

    def _layout_fields(self) -> dict[str, Any]:
        return {"padded": self._padded, "weight_scales": self._scales, "offsets": self._offsets}

    def _multiply(self, x: Tensor, fields: dict[str, Any]) -> None:
        if isinstance(x, SymbolicTensor):
            # A program rounds a tensor once for all products that read it.
            rounded, scales = x.trace.once((x.address, self._width), lambda: self._quantize(x))
        else:
            rounded, scales = self._quantize(x)
        run("int8_linear", self._out_dtype, x, x=rounded, row_scales=scales, **fields)

    def _multiply_experts(self, x: Tensor, fields: dict[str, Any]) -> None:
        run("int8_experts", x.dtype, x, row_scales=None, **fields)

    def _quantize(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Round x to int8. Returns the values plus 128, [rows, padded], uint8, and row scales, [rows, 1], float32."""
        rows = x.shape[0]
        rounded = x.new_empty((rows, self._padded), dtype=torch.uint8)
        scales = x.new_empty((rows, 1), dtype=torch.float32)
        run(
            "quantize_rows",
            x.dtype,
            x,
            x=x,
            stride=x.stride(0),
            out=rounded,
            scales=scales,
            rows=rows,
            width=self._width,
            padded=self._padded,
        )
        return rounded, scales
