"""All routes of the Cohere dialect."""

from __future__ import annotations

from typing import Any

from server.api.dialects.cohere import embed, rerank
from server.api.route import Route

ROUTES: tuple[Route[Any, Any, Any], ...] = (embed.ROUTE, *rerank.ROUTES)
