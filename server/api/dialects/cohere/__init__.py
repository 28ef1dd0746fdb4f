"""The Cohere dialect: chat, embed and rerank; rerank also as Jina's clients send it."""
