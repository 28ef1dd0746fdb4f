"""Inputs of the attention layers for one forward pass: positions, patterns, and where keys and values are."""
