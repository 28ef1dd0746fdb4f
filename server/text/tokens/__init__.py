"""The protocol of tokenizers, and work on tokens: incremental decoding, bytes, bounds, windows, pairs of texts."""
