"""Text generation: options, prompts, grammars, and the text of an answer."""
