"""The limits behind a 429: their reasons and settings, and the limits of an API key."""
