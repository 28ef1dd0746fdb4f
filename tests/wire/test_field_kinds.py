"""Fields that we do not implement, over a socket: a header names ignored fields, the error message refused ones."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.waiting import HANG_SECONDS
from tests.wire.checkpoints import write_checkpoint
from tests.wire.conftest import LONG_LIMITS, Process

TEMPLATE = (
    "{%- if tools %}{{ tools | tojson }}{%- endif %}"
    "{%- for message in messages %}{{ message.role }}:{{ message.content or '' }}"
    "{%- for call in message.tool_calls or [] %}"
    '{{ \'<tool_call>\\n{"name": "\' + call.function.name + \'", "arguments": \' + call.function.arguments | tojson + '
    "'}\\n</tool_call>' }}{%- endfor %}\n{%- endfor %}"
)
TEXT = {"messages": [{"role": "user", "content": "hi"}]}
LONG = {"stream": True, "max_tokens": 4}
TOOL = {"name": "f", "input_schema": {"type": "object"}}

WISHES: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "messages": (
        "/v1/messages?beta=true",
        TEXT
        | {
            "max_tokens": 4,
            "thinking": {"type": "enabled", "budget_tokens": 2048},
            "container": "c",
            "context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]},
            "tools": [{"type": "bash_20250124", "name": "bash"}],
            "system": "x-anthropic-billing-header: cc_version=1; cch=0f;\nBe brief.",
        },
        "thinking.budget_tokens, context_management.edits[0], container, system[0], tools[0], thinking",
    ),
    "streamed messages": ("/v1/messages", TEXT | LONG | {"mcp_servers": [{"name": "x"}]}, "mcp_servers"),
    "count": (
        "/v1/messages/count_tokens",
        TEXT | {"tools": [TOOL | {"input_examples": [{}]}]},
        "tools[0].input_examples",
    ),
    "chat": (
        "/v1/chat/completions",
        TEXT | {"max_tokens": 4, "web_search_options": {}, "tools": [{"type": "custom", "custom": {"name": "sh"}}]},
        "web_search_options, tools[0]",
    ),
    "streamed chat": ("/v1/chat/completions", TEXT | LONG | {"enable_thinking": True}, "enable_thinking"),
    "completions": ("/v1/completions", {"prompt": "hi", "samplers": ["top_k"]}, "samplers"),
    "cohere": ("/v2/chat", TEXT | {"max_tokens": 4, "thinking": {"type": "enabled"}}, "thinking"),
}
REFUSED: Mapping[str, tuple[str, Mapping[str, Any], str]] = {
    "messages": ("/v1/messages", TEXT | {"max_tokens": 4, "compaction": {"type": "summarize"}}, "`compaction`"),
    "chat": ("/v1/chat/completions", TEXT | {"functions": [{"name": "f"}]}, "`functions`"),
    "completions": ("/v1/completions", {"prompt": "hi", "suffix": "x"}, "`suffix`"),
    "cohere": ("/v2/chat", TEXT | {"documents": ["x"]}, "`documents`"),
    "ollama": ("/api/generate", {"prompt": "hi", "template": "x"}, "`template`"),
}


@pytest.fixture(scope="module")
def chat_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    directory = write_checkpoint(tmp_path_factory.mktemp("chat") / "decoder")
    Path(directory, "chat_template.jinja").write_text(TEMPLATE)
    server = Process(f"decoder={directory}", *LONG_LIMITS)
    try:
        yield server.wait_ready().url
    finally:
        server.stop()


@pytest.fixture
def post(chat_url: str) -> Callable[[str, Mapping[str, Any]], httpx.Response]:
    return lambda path, body: httpx.post(chat_url + path, json=body, timeout=HANG_SECONDS)


@pytest.mark.parametrize("case", WISHES)
def test_dropped_parameters_are_named(post: Callable[..., httpx.Response], case: str) -> None:
    path, body, names = WISHES[case]
    answer = post(path, body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-ignored-parameters"] == names


def test_an_answer_that_drops_nothing_has_no_such_header(post: Callable[..., httpx.Response]) -> None:
    body = TEXT | {"max_tokens": 4, "metadata": {"user_id": "x"}, "speed": "fast", "mcp_servers": [], "container": None}
    answer = post("/v1/messages", body)
    assert answer.status_code == 200 and "x-ignored-parameters" not in answer.headers


@pytest.mark.parametrize("case", REFUSED)
def test_a_refused_field_is_named(post: Callable[..., httpx.Response], case: str) -> None:
    path, body, name = REFUSED[case]
    answer = post(path, body)
    assert answer.status_code in (400, 422) and name in answer.text


def test_a_forced_choice_of_a_dropped_tool_is_an_error(post: Callable[..., httpx.Response]) -> None:
    built_in = {"type": "web_search_20250305", "name": "web_search"}
    anthropic = TEXT | {"max_tokens": 4}
    for more in (
        {"tools": [built_in], "tool_choice": {"type": "any"}},
        {"tools": [TOOL, built_in], "tool_choice": {"type": "tool", "name": "web_search"}},
    ):
        answer = post("/v1/messages", anthropic | more)
        assert answer.status_code == 400 and "`tool_choice` asks for a tool" in answer.text
    chat = TEXT | {"tools": [{"type": "web_search"}], "tool_choice": "required"}
    answer = post("/v1/chat/completions", chat)
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tool_choice"


def test_a_changing_line_leaves_the_prompt_cached(post: Callable[..., httpx.Response]) -> None:
    """A system prompt may begin with a line that changes in each request.

    It is removed, so it does not change prompts.
    """
    system = [{"type": "text", "text": "x-anthropic-billing-header: cch=%s;"}, {"type": "text", "text": "Be brief."}]
    counts = []
    for text in ("", "x-anthropic-billing-header: a;\n", "x-anthropic-billing-header: another one;\n"):
        counts.append(post("/v1/messages/count_tokens", TEXT | {"system": f"{text}Be brief."}).json())
    counts.append(post("/v1/messages/count_tokens", TEXT | {"system": system}).json())
    chat = [{"role": "system", "content": "x-anthropic-billing-header: a;\nBe brief."}, *TEXT["messages"]]
    usage = post("/v1/chat/completions", {"messages": chat, "max_tokens": 1}).json()["usage"]
    assert {count["input_tokens"] for count in counts} == {usage["prompt_tokens"]}


def test_the_usage_so_far_is_in_every_chunk(post: Callable[..., httpx.Response]) -> None:
    options = {"include_usage": True, "continuous_usage_stats": True}
    for path, body in (("/v1/chat/completions", TEXT), ("/v1/completions", {"prompt": "hi"})):
        text = post(path, body | LONG | {"stream_options": options}).text
        assert text.endswith("data: [DONE]\n\n") and '"usage":null' not in text
        assert text.count('"completion_tokens":') == text.count("data: {")
