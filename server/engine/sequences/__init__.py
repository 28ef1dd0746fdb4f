"""Sequence groups, and the data of one sequence in a group. All other parts of the engine use these classes."""
