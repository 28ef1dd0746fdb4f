"""Encoders in the engine: queue, steps and results, for texts and for recordings."""
