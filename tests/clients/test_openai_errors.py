"""Every error class of the `openai` package."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from pathlib import Path

import openai
import pytest
from openai import OpenAI

from tests.clients.conftest import NO_KEY, ClientServer
from tests.clients.models import DEMO
from tests.clients.openai_story import STORY, client, told
from tests.e2e.conftest import RunningServer, serving
from tests.waiting import eventually

__all__ = ["client"]


class TestErrors:
    MESSAGES = ({"role": "user", "content": STORY},)

    def test_bad_request_names_the_field(self, client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="story", messages=self.MESSAGES, temperature=-1)
        error = caught.value
        assert error.param == "temperature" and error.code == "invalid_request"
        assert error.type == "invalid_request_error" and "`temperature`" in error.message

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("modalities", ["audio"]),
            ("audio", {"voice": "alloy", "format": "wav"}),
            ("functions", [{"name": "f"}]),
            ("moderation", {"model": "m"}),
            ("guided_regex", "a+"),
            ("max_tokens", 0),
            ("stream_options", {"include_usage": True}),
            ("tool_choice", "required"),
            ("top_logprobs", 2),
            ("n", 17),
            ("no_such_field", 1),
        ],
    )
    def test_unsupported_fields_of_chat(self, client: OpenAI, field: str, value: object) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="story", messages=self.MESSAGES, extra_body={field: value})
        assert caught.value.param == field and f"`{field}`" in caught.value.message

    @pytest.mark.parametrize(
        ("field", "value"), [("suffix", "the end"), ("logprobs", 21), ("best_of", 17), ("chat_template_kwargs", {})]
    )
    def test_unsupported_fields_of_completions(self, client: OpenAI, field: str, value: object) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.completions.create(model="story", prompt=STORY, extra_body={field: value})
        assert caught.value.param == field and f"`{field}`" in caught.value.message

    @pytest.mark.parametrize("kind", ["image_url", "input_audio", "file"])
    def test_parts_that_are_not_text(self, client: OpenAI, kind: str) -> None:
        messages = [*self.MESSAGES, {"role": "user", "content": [{"type": kind, kind: {}}]}]
        with pytest.raises(openai.BadRequestError, match=rf"`messages\[1\].content` contains a part of type {kind}"):
            client.chat.completions.create(model="story", messages=messages)

    def test_a_model_without_a_chat_template(self, client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError, match="has no chat template"):
            client.chat.completions.create(model="translator-en-fr", messages=self.MESSAGES)

    def test_a_prompt_beyond_the_context(self, client: OpenAI) -> None:
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="story", messages=[{"role": "user", "content": "fox " * 600}])
        assert caught.value.code == "context_length_exceeded" and caught.value.param == "messages"

    def test_not_found(self, client: OpenAI) -> None:
        with pytest.raises(openai.NotFoundError) as caught:
            client.chat.completions.create(model="gpt-4o-mini", messages=self.MESSAGES)
        assert caught.value.code == "model_not_found" and caught.value.param == "model"

    def test_authentication(self, server: ClientServer) -> None:
        client = OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
        if not server.needs_key:
            assert client.models.list().data
            return
        with pytest.raises(openai.AuthenticationError) as caught:
            client.chat.completions.create(model="story", messages=self.MESSAGES)
        assert caught.value.code == "unauthorized"

    def test_a_deadline_before_the_first_token(self, client: OpenAI) -> None:
        with pytest.raises(openai.InternalServerError) as caught:
            client.completions.create(
                model="story", prompt=[STORY] * 64, max_tokens=400, extra_headers={"X-Timeout-Ms": "1"}
            )
        assert caught.value.status_code == 504 and caught.value.code == "timeout"


@pytest.fixture
def stalled(tmp_path: Path) -> Iterator[RunningServer]:
    """A server with a stopped worker, and room for one waiting sequence."""
    limits = ("--max-queue-requests", "1", "--stale-seconds", "500", "--hang-seconds", "600")
    with serving(tmp_path / "log", f"story={DEMO / 'story'}", *limits) as server:
        worker = server.worker()
        worker.suspend()
        yield server
        if worker.is_running():
            worker.resume()


@pytest.fixture
def stalled_client(stalled: RunningServer) -> Iterator[OpenAI]:
    with OpenAI(base_url=f"{stalled.url}/v1", api_key=NO_KEY, max_retries=0) as client:
        yield client


def test_a_full_queue_is_a_rate_limit(stalled: RunningServer, stalled_client: OpenAI) -> None:
    with ThreadPoolExecutor() as threads:
        requests = [
            threads.submit(stalled_client.completions.create, model="story", prompt=STORY, max_tokens=4, temperature=0)
            for _ in range(2)
        ]
        (refused,), (waiting,) = wait(requests, return_when=FIRST_COMPLETED)
        stalled.worker().resume()
        assert waiting.result().choices[0].text == told(4)
    with pytest.raises(openai.RateLimitError) as caught:
        refused.result()
    assert caught.value.code == "overloaded" and caught.value.response.headers["retry-after"] == "1"


def test_a_request_that_has_not_begun_survives_its_worker(stalled: RunningServer, stalled_client: OpenAI) -> None:
    with ThreadPoolExecutor() as threads:
        waiting = threads.submit(
            stalled_client.completions.create, model="story", prompt=STORY, max_tokens=4, temperature=0
        )
        eventually(lambda: "triptych_tokenize_seconds_count 1.0" in stalled.get("/metrics").text)
        stalled.worker().kill()
        assert waiting.result().choices[0].text == told(4)


def test_a_worker_that_dies_is_a_server_error(tmp_path: Path) -> None:
    endless = {"model": "story", "max_tokens": 500, "extra_body": {"ignore_eos": True}}
    with (
        serving(tmp_path / "log", f"story={DEMO / 'story'}") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key=NO_KEY, max_retries=0) as client,
        ThreadPoolExecutor() as threads,
    ):
        begun = threads.submit(client.completions.create, prompt=[STORY] * 64, **endless)
        eventually(lambda: server.metric("triptych_generated_tokens_total") > 0)
        server.worker().kill()
        with pytest.raises(openai.InternalServerError) as caught:
            begun.result()
    assert caught.value.status_code == 500 and caught.value.type == "server_error"


def test_a_stream_that_fails_ends_with_an_error(tmp_path: Path) -> None:
    """If the worker dies during a stream, the package raises an error, and the stream has no end event."""
    endless = {"model": "story", "stream": True, "extra_body": {"ignore_eos": True}}
    with (
        serving(tmp_path / "log", f"story={DEMO / 'story'}") as server,
        OpenAI(base_url=f"{server.url}/v1", api_key=NO_KEY, max_retries=0) as client,
    ):
        for begin in (
            lambda: client.completions.create(prompt=[STORY] * 16, max_tokens=500, **endless),
            lambda: client.chat.completions.create(messages=[{"role": "user", "content": STORY}], n=16, **endless),
        ):
            server.wait_ready()
            with begin() as stream, pytest.raises(openai.APIError) as caught:
                next(stream)
                server.worker().kill()
                for _ in stream:
                    pass
            assert not isinstance(caught.value, openai.APIStatusError | openai.APIConnectionError)
            assert isinstance(caught.value.body, dict) and caught.value.body["type"] == "server_error"
        server.wait_ready()
        with client.responses.create(input=STORY, **endless) as stream:
            next(stream)
            server.worker().kill()
            *_, last = stream
        assert last.type == "response.failed" and last.response.error is not None and last.response.error.message
