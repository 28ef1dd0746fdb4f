"""Encoders in the engine: the queue of requests, encoder steps, and their results, for texts and recordings."""
