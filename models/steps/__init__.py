"""What one step is given: batches, KV cache, states, inputs and alignment."""
