"""The Ollama dialect (API.md section 7): `/api/chat`, `/api/generate`, `/api/embed` and the routes about models."""
