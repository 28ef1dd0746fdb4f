"""The CPU backend: compiled kernels for float32 and bfloat16, and plain torch for operations without a kernel."""

from __future__ import annotations

from torch import Tensor

from models.backends.cpu.linear import FloatWeight
from models.backends.cpu.mixers import CpuMixers
from models.backends.cpu.operations import CpuAttention, CpuOperations
from models.backends.cpu.sampling import CpuSampling
from models.backends.torch.backend import Backend


class CpuBackend(CpuOperations, CpuAttention, CpuMixers, CpuSampling, Backend):
    """Operations of the compiled kernels. With symbolic tensors, an operation is recorded instead of computed."""

    def linear(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        # The weight keeps torch's layout, because other operations may read it as well. The FloatWeight made here only
        # refers to the memory of `weight`. A program records the call once, so its runs make no such objects.
        if x.dim() != 2 or weight.dtype != x.dtype:
            return super().linear(x, weight, bias)
        return FloatWeight(weight, bias, is_packed=False).multiply(x)


CPU = CpuBackend()
