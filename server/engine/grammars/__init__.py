"""Grammars of answers: masks of allowed tokens, the threads that compute them, and who waits for them."""
