"""Chat: render the prompt with the checkpoint's template, and divide an answer into reasoning, content and calls."""
