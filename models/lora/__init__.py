"""LoRA adapters: their configuration, reading their files, and applying them to the weights of a model."""
