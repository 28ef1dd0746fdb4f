"""An application with `/v1/responses` and a scripted model in this process, for the tests of a module.

The chat template shows everything that a message can have, so that a test can compare whole prompts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from server.api.app import create_api
from server.api.state import State
from server.settings.settings import Settings
from tests.operations.chat_bench import ChatBench, write_checkpoint

TEMPLATE = """\
{%- for tool in tools or [] %}{{- '[' + tool.function.name + ']' }}{%- endfor %}
{%- for message in messages %}
    {{- '<' + message.role + '>' }}
    {%- if message.reasoning_content %}{{- '<think>' + message.reasoning_content + '</think>' }}{%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '<tool_call>{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}</tool_call>' }}
    {%- endfor %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<assistant>' }}{%- endif %}"""
TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}
    for name in ("get_weather", "get_time")
]
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'


class ResponseBench:
    """An application with a scripted model, and a client for each API key.

    prompt: text of the latest prompt that the model got.
    keys: the accepted API keys. Requests are sent with the first one unless the test names another.
    """

    def __init__(self, directory: Path, keys: tuple[str, ...] = (), **settings: Any) -> None:
        self.llm = ChatBench(write_checkpoint(directory / "llm", TEMPLATE))
        given = Settings(api_keys=list(keys), **settings)
        self.state = State(given, self.llm.runtime, lambda: True, lambda: False, keys=given.keys())
        self.state.started = True
        self._key = keys[0] if keys else ""
        self._http = httpx.AsyncClient(
            transport=httpx.ASGITransport(create_api(self.state)), base_url="http://127.0.0.1"
        )

    @property
    def prompt(self) -> str:
        return self.llm.tokenizer.decode(self.llm.sent[-1].prompts[0], skip_special_tokens=False)

    def will_say(self, text: str) -> None:
        """Make the model answer every further prompt with `text`."""
        self.llm.follow(text)
        self.llm.runner.script = [*self.llm.runner.script, 1]

    async def send(self, method: str, path: str, key: str | None = None, **more: Any) -> httpx.Response:
        sent = self._key if key is None else key
        headers = {"authorization": f"Bearer {sent}"} if sent else {}
        return await self._http.request(method, f"/v1/responses{path}", headers=headers, **more)

    async def post(self, key: str | None = None, **body: Any) -> httpx.Response:
        return await self.send("POST", "", key, json={"input": "Hi", **body})

    async def ask(self, **body: Any) -> dict[str, Any]:
        """Send a request without streaming and return the body of the answer, which must have the status 200."""
        response = await self.post(**body)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def stream(self, **body: Any) -> list[dict[str, Any]]:
        """Send a request with streaming and return the events of the answer."""
        response = await self.post(**body, stream=True)
        assert response.status_code == 200, response.text
        return [json.loads(line.removeprefix("data: ")) for line in response.text.split("\n") if line[:6] == "data: "]

    async def get(self, path: str, key: str | None = None, **parameters: Any) -> httpx.Response:
        return await self.send("GET", f"/{path}", key, params=parameters)

    async def close(self) -> None:
        await self._http.aclose()
        self.llm.close()


def error_of(response: httpx.Response) -> Mapping[str, Any]:
    error: Mapping[str, Any] = response.json()["error"]
    return error
