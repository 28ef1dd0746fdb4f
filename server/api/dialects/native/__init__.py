"""The native dialect: API.md sections 3 to 5."""
