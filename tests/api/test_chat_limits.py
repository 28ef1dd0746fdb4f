"""Limits of chat routes: larger bodies than other routes, prompts up to the context, answers up to the KV cache."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import orjson
import pytest
from starlette.datastructures import Headers

from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis
from server.operations.chatting import chat_prompt
from server.settings.settings import Settings
from server.text import checkpoint_text
from tests.api.conftest import Bench
from tests.clients.models import HERMES_TEMPLATE

CHAT = ("/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/api/chat", "/v2/chat")
CONTEXT = 40_960
MIB = 1 << 20


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A decoder with a chat template, a context of 40,960 tokens, and a KV cache for 32,768 of them."""
    made = Bench(tmp_path, Settings())
    (tmp_path / "decoder" / "chat_template.jinja").write_text(HERMES_TEMPLATE)
    made.runtime.texts = {"decoder": checkpoint_text.load("decoder", tmp_path / "decoder")}
    made.infos = {
        "decoder": msgspec.structs.replace(
            made.infos["decoder"], context_tokens=CONTEXT, block_size=32, kv_blocks={"self": 1024}
        )
    }
    made.become_ready()
    yield made
    made.runtime.close()


async def post(http: httpx.AsyncClient, path: str, text: str, **more: Any) -> httpx.Response:
    messages = [{"role": "user", "content": text}]
    own = {
        "/v1/responses": {"input": messages},
        "/v1/messages": {"messages": messages, "max_tokens": 4},
        "/api/chat": {"messages": messages, "stream": False},
    }
    sent = orjson.dumps({"model": "decoder", **own.get(path, {"messages": messages}), **more})
    return await http.post(path, content=sent, headers={"content-type": "application/json"})


async def answered(bench: Bench, http: httpx.AsyncClient, path: str, text: str, **more: Any) -> Generate:
    """Send a chat request, answer it, and return the message that the worker got."""
    posted = asyncio.create_task(post(http, path, text, **more))
    while not bench.sent and not posted.done():
        await asyncio.sleep(0.001)
    assert not posted.done() or posted.result().status_code == 200, posted.result().text
    message = await bench.sent_generate()
    ends = [Hypothesis([100], "stop")]
    bench.output(finished=[Finished(row.sequence_id, ends, 0.0, 0.0, 0.0, 0) for row in message.rows])
    assert (await posted).status_code == 200
    return message


@pytest.mark.parametrize("path", CHAT)
async def test_a_large_conversation_is_refused_by_its_length(bench: Bench, http: httpx.AsyncClient, path: str) -> None:
    """A body that the route accepts but whose prompt exceeds the context gets 400 with the context length.

    The server renders or counts 3 MiB, but does not even parse 31 MiB.
    """
    for size in (3 * MIB, 31 * MIB):
        refused = await post(http, path, "word " * (size // 5))
        assert refused.status_code == 400, refused.text
        assert "40,960 tokens" in refused.text
    assert (await post(http, path, "a" * (32 * MIB))).status_code == 413
    assert bench.runtime.admission.total.memory_bytes == bench.state.door.body_bytes == 0


async def test_other_routes_keep_their_limit(bench: Bench, http: httpx.AsyncClient) -> None:
    for path, field in (("/generate", "prompt"), ("/v1/completions", "prompt"), ("/tokenize", "inputs")):
        assert (await http.post(path, json={"model": "decoder", field: "a" * 3 * MIB})).status_code == 413


async def test_the_error_has_the_code_of_a_long_prompt(bench: Bench, http: httpx.AsyncClient) -> None:
    for size, param in ((3 * MIB, "messages"), (31 * MIB, None)):
        error = (await post(http, CHAT[0], "a" * size)).json()["error"]
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    error = (await post(http, CHAT[1], "a" * 3 * MIB)).json()["error"]
    assert error["param"] == "input" and "`input` and the other texts have" in error["message"]


@pytest.mark.parametrize("path", [path for path in CHAT if not path.endswith("count_tokens")])
async def test_a_conversation_longer_than_the_kv_cache_is_refused_as_too_long(
    bench: Bench, http: httpx.AsyncClient, path: str
) -> None:
    """The error is the one for a too long prompt, because agents shorten the conversation only after this error."""
    tokens = 32_768 - len(bench.runtime.texts["decoder"].tokenizer.encode(["a"])[0].ids)
    refused = await post(http, path, "a" * tokens)
    param = "input" if path == "/v1/responses" else "messages"
    assert refused.status_code == 400, refused.text
    assert "leaves no room for a new token; the KV cache of `decoder` holds 32768 tokens" in refused.text
    assert f"`{param}` has" in refused.text and "max_new_tokens" not in refused.text
    error = refused.json().get("error", {})
    if path.startswith("/v1/messages"):
        assert error["message"].startswith("prompt is too long: ") and " > 32768 maximum; " in error["message"]
    elif path.startswith("/v1/"):
        assert (error["code"], error["param"]) == ("context_length_exceeded", param)


def conversation(turns: int, num_tools: int) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Messages and tools of an agent, with `turns` tool calls. 40 turns and 30 tools are about 100 kB of JSON."""
    tools = [
        {
            "type": "function",
            "function": {
                "name": f"tool_{number}",
                "description": "Reads a file and returns its lines. " * 10,
                "parameters": {
                    "type": "object",
                    "properties": {
                        name: {"type": "string", "description": "A path, absolute."}
                        for name in ("path", "mode", "encoding")
                    },
                    "required": ["path"],
                },
            },
        }
        for number in range(num_tools)
    ]
    messages: list[dict[str, Any]] = [{"role": "system", "content": "You edit files. " * 900}]
    for number in range(turns):
        call = {"name": f"tool_{number % num_tools}", "arguments": '{"path": "/src/main.py"}'}
        calls = [{"id": f"call_{number}", "type": "function", "function": call}]
        messages += [
            {"role": "assistant", "content": "I read it.", "tool_calls": calls},
            {"role": "tool", "tool_call_id": f"call_{number}", "content": "    line = read(path)\n" * 60},
        ]
    messages.insert(1, {"role": "user", "content": "Mend the tests."})
    return messages, tools


async def test_an_agent_of_25000_tokens_with_30_tools_is_admitted_at_once(
    bench: Bench, http: httpx.AsyncClient
) -> None:
    """A conversation of 25,000 tokens is accepted.

    The test's tokenizer has one token per byte instead of about one per four bytes, so the context is four times as
    large.
    """
    info = msgspec.structs.replace(bench.infos["decoder"], context_tokens=4 * CONTEXT, kv_blocks={"self": 8192})
    bench.client.on_ready([info], "cpu", bench.sent.append)
    messages, tools = conversation(40, 30)
    assert 90_000 < len(orjson.dumps([messages, tools])) < 130_000
    message = await answered(bench, http, CHAT[0], "", messages=messages, tools=tools, max_tokens=512)
    assert len(message.prompts[0]) > 90_000


@pytest.mark.parametrize(
    ("path", "limit"),
    [
        ("/v1/chat/completions", {"max_tokens": 32_000}),
        ("/v1/responses", {"max_output_tokens": 32_000}),
        ("/v1/messages", {"max_tokens": 32_000}),
        ("/api/chat", {"options": {"num_predict": 32_000}}),
        ("/v2/chat", {"max_tokens": 32_000}),
    ],
)
async def test_a_large_answer_limit_is_cut_to_the_kv_cache(
    bench: Bench, http: httpx.AsyncClient, path: str, limit: dict[str, Any]
) -> None:
    """Agents ask for up to 32,000 new tokens. The answer is limited to the room that the KV cache has."""
    message = await answered(bench, http, path, "a" * 25_000, **limit)
    (row,) = message.rows
    assert len(message.prompts[0]) + row.max_new_tokens == 1024 * 32


async def test_a_prompt_that_may_be_long_is_counted_in_pieces(
    bench: Bench, http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the number of characters does not decide whether a prompt fits, its tokens are counted in pieces.

    A prompt that fits is answered; a longer one is refused without counting the rest.
    """
    monkeypatch.setattr(chat_prompt, "MAX_TEXT_TOKENS", 10_000)
    monkeypatch.setattr(chat_prompt, "PIECE_TOKENS", 3000)
    message = await answered(bench, http, CHAT[0], "é" * 15_000)
    assert 30_000 < len(message.prompts[0]) < 30_200
    refused = await post(http, CHAT[0], "é" * 25_000)
    assert refused.status_code == 400 and refused.json()["error"]["code"] == "context_length_exceeded"
    assert "more than 41,591 tokens" in refused.text, "the rest is not counted"


async def test_a_chat_body_without_a_length_is_counted_as_it_arrives(bench: Bench, http: httpx.AsyncClient) -> None:
    bench.state.door.max_body_bytes = 8 * MIB
    bench.state.door.enter({}, Headers({"content-length": str(4 * MIB)}))

    async def chunks() -> Any:
        for _ in range(10):
            yield b" " * MIB

    headers = {"content-type": "application/json"}
    refused = await http.post(CHAT[0], content=chunks(), headers=headers)
    assert refused.status_code == 429 and bench.state.door.body_bytes == 4 * MIB


async def test_info_names_the_limit(bench: Bench, http: httpx.AsyncClient) -> None:
    info = (await http.get("/info")).json()
    assert info["limits"]["max_chat_body_bytes"] == 32 * MIB
    (model,) = info["models"]
    assert (model["kv_tokens"], model["agent_tokens"], model["agent_sequences"]) == (32_768, 32_768, 1)
