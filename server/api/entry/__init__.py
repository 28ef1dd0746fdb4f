"""Checks that every request passes before it reaches a route: host and web page, API key, and limits of load."""
