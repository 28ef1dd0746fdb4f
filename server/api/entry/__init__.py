"""What every request passes before it reaches a route: request id, foreign pages, API key, limits."""
