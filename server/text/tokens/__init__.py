"""The protocol of tokenizers, and what is done with tokens: text in parts, bytes, bounds, windows, pairs."""
