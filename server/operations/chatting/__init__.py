"""Chat: the prompt that a template makes, and the parts of an answer."""
