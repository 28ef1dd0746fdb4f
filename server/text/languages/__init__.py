"""Languages: codes, what a checkpoint translates, detection, sentences, terms."""
