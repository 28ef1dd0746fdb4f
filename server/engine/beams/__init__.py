"""Beam search: arithmetic of hypotheses, groups, required terms and stop strings."""
