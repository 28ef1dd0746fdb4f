"""Load and run the tokenizers of checkpoints: one file per kind of tokenizer, and readers of their files."""
