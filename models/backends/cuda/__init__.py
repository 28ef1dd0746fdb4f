"""The CUDA backend: the operations of the interface with Triton kernels."""
