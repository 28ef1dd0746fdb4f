"""Environment variables of the client commands. The server's settings share their prefix and leave them alone."""

URL = "TRIPTYCH_URL"
API_KEY = "TRIPTYCH_API_KEY"
MODEL = "TRIPTYCH_MODEL"

VARIABLES = frozenset({URL, API_KEY, MODEL})
