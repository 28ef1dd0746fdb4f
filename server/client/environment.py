"""Environment variables of the client commands.

They have the same prefix as the variables of the server's settings, which ignore them.
"""

URL = "TRIPTYCH_URL"
API_KEY = "TRIPTYCH_API_KEY"
MODEL = "TRIPTYCH_MODEL"

VARIABLES = frozenset({URL, API_KEY, MODEL})
