"""What crosses the process boundary: messages, parameters and descriptions."""
