"""Data that the HTTP process and the workers exchange: messages, generation parameters, model descriptions."""
