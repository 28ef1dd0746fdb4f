"""Grammars of answers: masks of allowed tokens, threads that compute masks, and groups that wait for their masks."""
