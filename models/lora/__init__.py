"""LoRA adapters: configuration, reading, and the products beside a model's weights."""
