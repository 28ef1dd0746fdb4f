"""The Cohere dialect (API.md section 7): chat, embed and rerank; rerank also as Jina's clients send it."""
