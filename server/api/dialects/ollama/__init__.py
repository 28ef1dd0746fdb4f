"""The Ollama dialect: `/api/chat`, `/api/generate`, `/api/embed` and the routes about models."""
