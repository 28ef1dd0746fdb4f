"""Turns a checkpoint into the engines of one model: weights, packed files, KV pools, drafters, and a description."""
