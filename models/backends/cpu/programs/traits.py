"""Properties of the operations in `kernels/kernels.h` that traces use, declared for each operation by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """Properties of an operation that matter for fusion, for its memory, and for reports.

    product_width: for a matrix product, name of the field with the number of inputs per row; None for other
        operations. The matrix of a product is in the field `weight`, the number of outputs in the field `columns`.
    of_experts: whether the product multiplies each row by the matrices of its experts.
    adds_residual: whether the operation adds the field `residual` to its result, if there is one. A sum that follows
        the operation becomes this field.
    overwritten: operand fields whose memory the result may take. The operation reads each value of such an operand just
        before it writes the value of the result at the same index.
    """

    product_width: str | None = None
    of_experts: bool = False
    adds_residual: bool = False
    overwritten: tuple[str, ...] = ()


_EPILOGUE = ("multiplier", "residual")

TRAITS: Mapping[str, Traits] = {
    "float_linear": Traits("width", adds_residual=True, overwritten=_EPILOGUE),
    "int8_linear": Traits("padded", adds_residual=True, overwritten=_EPILOGUE),
    "group_linear": Traits("padded", adds_residual=True, overwritten=_EPILOGUE),
    "float_experts": Traits("width", of_experts=True),
    "int8_experts": Traits("width", of_experts=True),
    "group_experts": Traits("width", of_experts=True),
    "sum_of_experts": Traits(adds_residual=True),
}
"""Traits by the name of the operation. All other operations have none."""
