"""Grammars of answers: masks of allowed tokens, the threads that compute masks, and the groups that wait for them."""
