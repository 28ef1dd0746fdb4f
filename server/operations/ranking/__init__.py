"""Vectors of texts, and the order of texts by a query."""
