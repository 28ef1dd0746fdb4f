"""The parts of a transformer layer, one part per file."""
