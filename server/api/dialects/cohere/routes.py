"""All routes of the Cohere dialect."""

from __future__ import annotations

from typing import Any

from server.api.dialects.cohere import chat, embed, rerank
from server.api.routes.route import Route

ROUTES: tuple[Route[Any, Any, Any], ...] = (chat.ROUTE, embed.ROUTE, *rerank.ROUTES)
