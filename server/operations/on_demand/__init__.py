"""Models that are declared, and loaded when a request asks for them."""
