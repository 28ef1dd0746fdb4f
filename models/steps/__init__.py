"""Inputs of one step: batches, KV cache, states of mixers, positions and alignment."""
