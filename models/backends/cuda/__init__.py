"""The CUDA backend: operations by Triton kernels."""
