"""Tokenizers of checkpoints, one file per kind, and the files that describe them."""
