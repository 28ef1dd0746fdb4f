"""Implementations of the model operations (products, norms, attention, sampling), one package per backend."""
