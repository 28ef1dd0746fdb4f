"""Chooses the next token of each row: logits processors, sampling, log-probabilities, results of ended groups."""
