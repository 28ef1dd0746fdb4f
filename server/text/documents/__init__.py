"""Document files: the texts to translate in them, and the same files with other texts."""
