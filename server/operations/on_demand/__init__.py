"""Models on demand: models that are declared at the start, and loaded when a request asks for them."""
