"""Layers of a transformer: one part per file."""
