"""OpenAI's routes of recordings: transcriptions, translations, and live sessions over a WebSocket."""
