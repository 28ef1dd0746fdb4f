"""Translation: languages, segments, markup and glossaries."""
