"""The CPU backend: compiled kernels, called one by one or as a program."""
