"""The OpenAI dialect (API.md section 6): completions, chat, responses, embeddings, models and audio."""
