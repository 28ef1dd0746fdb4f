"""The native dialect: API.md sections 3 to 5."""

from server.api.dialects.native.routes import ROUTES

__all__ = ["ROUTES"]
