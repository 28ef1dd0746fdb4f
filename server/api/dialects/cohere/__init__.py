"""The Cohere dialect: chat, embed and rerank. Its rerank routes also serve Jina's clients."""
