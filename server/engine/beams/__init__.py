"""Beam search: hypotheses and their scores, diverse groups, required terms, and stop strings."""
