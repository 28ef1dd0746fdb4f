"""Hostile checkpoints: each is refused at once, in one line, and costs little memory."""
