"""Decode steps of a device as CUDA graphs."""
