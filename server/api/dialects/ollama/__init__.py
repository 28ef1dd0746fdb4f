"""The Ollama dialect: `/api/chat`, `/api/generate`, `/api/embed`, and the routes that describe models."""
