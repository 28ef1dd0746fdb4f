"""Speculative decoding: drafts from n-grams of the text or from a smaller model."""
