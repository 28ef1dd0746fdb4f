"""Only times that are shown to people or stored come from the system clock, because it may jump.

Deadlines and durations use `time.monotonic`.
"""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
WALL = {"time.time", "time.time_ns", "time.localtime", "time.gmtime", "datetime.now", "datetime.utcnow"}
SHOWN = {
    "server/api/dialects/ollama/answers.py": "`created_at` of an answer",
    "server/api/dialects/ollama/models.py": "`expires_at` of a loaded model",
    "server/api/dialects/openai/common.py": "`created` of an answer",
    "server/api/dialects/openai/responses/renderer.py": "`completed_at` of a stored response",
    "server/api/state.py": "`created` of a model: when the server started",
    "server/api/stored/suggestions.py": "`time` of a suggestion",
    "server/api/telemetry/tracing.py": "times of a span",
    "server/client/connection.py": "`Retry-After` of another server, as a date",
    "server/commands/hub.py": "day on which a model in the cache of the hub was last used",
    "server/operations/glossary_store.py": "`creation_time` of a glossary",
    "server/operations/sequence_sets.py": "`created` of a set of allowed sequences",
    "server/text/chats/chat_process.py": "the date in a chat template",
}


def names(tree: ast.AST) -> set[str]:
    """The dotted names in a syntax tree, such as `time.time`."""
    return {ast.unparse(node) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}


def test_only_shown_times_read_the_clock_of_the_wall() -> None:
    found = {
        str(path.relative_to(ROOT))
        for hall in ("server", "models", "weights")
        for path in (ROOT / hall).rglob("*.py")
        if "weights/demo/train" not in str(path) and names(ast.parse(path.read_text("utf-8"))) & WALL
    }
    assert found == SHOWN.keys()


def test_deadlines_are_noticed() -> None:
    assert names(ast.parse("end = time.time() + seconds")) & WALL
