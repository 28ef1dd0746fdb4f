"""Hostile checkpoints are refused quickly, with an error message of one line, and need little memory."""
