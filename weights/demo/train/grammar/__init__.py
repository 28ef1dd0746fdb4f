"""Grammars that write the training text of the demo models; no text comes from anywhere else."""
