"""The next token of each row: processing of logits, sampling, log-probabilities, results."""
