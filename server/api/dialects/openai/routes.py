"""All routes of the OpenAI dialect."""

from __future__ import annotations

from typing import Any

from server.api.dialects.openai import chat, completions, embeddings, models
from server.api.dialects.openai.audio import live_route
from server.api.dialects.openai.audio import routes as audio
from server.api.dialects.openai.responses import routes as responses
from server.api.routes.route import Route

ROUTES: tuple[Route[Any, Any, Any], ...] = (
    chat.ROUTE,
    completions.ROUTE,
    responses.ROUTE,
    embeddings.ROUTE,
    *audio.ROUTES,
    live_route.ROUTE,
)
GET_ROUTES = models.GET_ROUTES
OWNED_ROUTES = responses.OWNED_ROUTES
