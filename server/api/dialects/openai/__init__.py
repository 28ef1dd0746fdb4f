"""The OpenAI dialect: completions, chat, responses, embeddings, models and audio."""
