"""Sequence groups and the state that belongs to one sequence. All other parts of the engine use them."""
