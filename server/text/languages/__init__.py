"""Languages: their codes, the translations that a checkpoint offers, detection, sentence splitting, glossaries."""
