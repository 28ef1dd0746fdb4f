"""Implementations of the hot operations, one package per backend."""
