"""Grammars that generate all training texts of the demo models."""
