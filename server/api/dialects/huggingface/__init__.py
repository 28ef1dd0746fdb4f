"""Dialects of Hugging Face: text-generation-inference, text-embeddings-inference, and the hub's inference tasks."""
