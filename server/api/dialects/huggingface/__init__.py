"""Dialects of Hugging Face: text-generation-inference, text-embeddings-inference, and the tasks of the hub."""
