"""Blocks of the KV pools and slots of the state memory: which sequence has which. Holds no tensors."""
