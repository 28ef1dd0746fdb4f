"""Programs: trace a stack with symbolic tensors, lower the trace to a program, and run it."""
