"""Read and write quantised checkpoints, one file per format."""
