"""Assigns the blocks of KV pools, and state slots, to sequences. Holds no tensors."""
