"""Names of the attributes of trace spans. No attribute contains a prompt, an answer or an API key.

Source: OpenTelemetry semantic conventions, HTTP spans and generative AI spans.
"""

from __future__ import annotations

from collections.abc import Mapping

METHOD = "http.request.method"
ROUTE = "http.route"
STATUS = "http.response.status_code"
ERROR_TYPE = "error.type"

PROVIDER = "gen_ai.provider.name"
OPERATION = "gen_ai.operation.name"
REQUEST_MODEL = "gen_ai.request.model"
RESPONSE_MODEL = "gen_ai.response.model"
INPUT_TOKENS = "gen_ai.usage.input_tokens"
OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
FINISH_REASONS = "gen_ai.response.finish_reasons"

REQUEST_ID = "triptych.request_id"
KEY_NAME = "triptych.key.name"

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH", "QUERY"})
"""Known HTTP methods. Any other method is reported as `_OTHER`."""
OPERATIONS: Mapping[str, str] = {"generate": "text_completion", "chat": "chat", "embed": "embeddings"}
"""Our name of an operation to its name in the semantic conventions. Other operations keep our name."""
