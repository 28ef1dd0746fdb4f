"""Chat templates, formats of function calls, and prompts for ranking."""
