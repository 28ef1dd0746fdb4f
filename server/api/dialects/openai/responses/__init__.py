"""OpenAI's Responses API: its body, its conversation, its stored answers and its events."""
