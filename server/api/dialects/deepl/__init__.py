"""The DeepL dialect: texts, documents, glossaries, languages and usage."""

from server.api.dialects.deepl import documents, glossaries, languages, translate
from server.api.dialects.deepl.common import ERRORS
from server.api.dialects.deepl.translate import DeeplTranslateAnswer

ROUTES = (*translate.ROUTES, *documents.ROUTES)
GET_ROUTES = (*translate.GET_ROUTES, *languages.GET_ROUTES)
STATE_ROUTES = (*documents.STATE_ROUTES, *glossaries.STATE_ROUTES)

__all__ = ["ERRORS", "GET_ROUTES", "ROUTES", "STATE_ROUTES", "DeeplTranslateAnswer"]
