"""OpenAI's audio routes: transcriptions and translations of recordings, and live transcription."""
