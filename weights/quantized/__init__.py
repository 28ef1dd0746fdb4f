"""Readers of quantised checkpoints, one file per format."""
