"""The limits for which the server refuses a request with status 429, and the limits of single API keys."""
