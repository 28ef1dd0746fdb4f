"""Routes of a server that loads models on demand: waiting, streams, lists of models, `keep_alive` and admin keys."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from server.api.dialects.openai.audio import routes as audio
from server.api.fields.keep_alive import keep_alive_seconds
from server.api.routes import route
from server.errors import InvalidRequest, NotReady
from server.greeting import greeting
from server.ipc.wire.descriptions import ModelSpec
from server.ipc.wire.generate_messages import Finished, Generate, Hypothesis
from server.operations.model_names import ModelNames
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.speech.transcribe_spec import Transcript
from server.settings.settings import Settings
from tests.api.conftest import Bench
from tests.audio.wavs import wav
from tests.parity.speech import recording
from tests.waiting import HANG_SECONDS


class FakeRegistry:
    """A model registry whose loads end when the test sets `loaded`. failure: reason of failure, empty for success."""

    def __init__(self, models: list[DeclaredModel]) -> None:
        self.models = {model.name: model for model in models}
        self.loaded = asyncio.Event()
        self.failure = ""
        self.has_waited = False
        self.described: list[tuple[DeclaredModel, Description]] = []
        self.kept: list[tuple[str, float | None]] = []
        self.released: list[str] = []
        self.holding: dict[object, list[str]] = {}

    def find(self, name):
        return self.models.get(name)

    async def find_again(self, name):
        return self.models.get(name)

    async def discover(self) -> None: ...

    async def descriptions(self):
        return self.described

    async def description(self, model):
        return next((about for found, about in self.described if found is model), None)

    async def unload_unused(self, model) -> None:
        self.released.append(model.name)

    async def demand(self, call, model) -> None:
        self.has_waited = True
        await self.loaded.wait()
        if self.failure:
            raise NotReady(self.failure, retry_after=7)
        self.holding.setdefault(call, []).append(model.name)
        call.on_close(lambda: self.holding.pop(call, None))

    @property
    def held(self) -> int:
        return len(self.holding)

    async def load_now(self, model) -> None:
        model.state = "loaded"

    async def unload(self, model) -> None:
        model.state = "declared"

    def keep(self, call, seconds) -> None:
        self.kept += [(name, seconds) for name in self.holding.get(call, ())]

    def about(self):
        return {"memory_bytes": 100, "used_bytes": 0, "models": [model.about(0.0) for model in self.models.values()]}


def on_demand(bench: Bench, tmp_path) -> FakeRegistry:
    bench.become_ready()
    names = [*bench.runtime.texts, "resting"]
    registry = FakeRegistry([DeclaredModel(ModelSpec(name, str(tmp_path), "auto")) for name in names])
    bench.runtime.registry = registry
    bench.runtime.names = ModelNames((("gpt-*", "decoder"),))
    return registry


@pytest.fixture
def registry(bench, tmp_path) -> FakeRegistry:
    return on_demand(bench, tmp_path)


async def answer(bench: Bench) -> None:
    """Answer the next request to the worker."""
    while not (sent := [message for message in bench.sent if isinstance(message, Generate)]):
        await asyncio.sleep(0)
    (row,) = sent[0].rows
    bench.output(finished=[Finished(row.sequence_id, [Hypothesis([5], "stop", 0.0)], 0.0, 0.0, 0.0)])


BODY = {"model": "decoder", "prompt": "Once", "max_new_tokens": 3}


async def test_an_answer_waits_for_its_model_and_holds_it_to_its_end(bench, http, registry):
    asking = asyncio.create_task(http.post("/generate", json=BODY | {"model": "gpt-4o"}))
    await asyncio.sleep(0.02)
    assert not asking.done() and not bench.sent
    registry.loaded.set()
    await answer(bench)
    assert (await asking).status_code == 200 and registry.held == 0


async def test_a_load_that_fails_is_503_with_the_reason(http, registry):
    registry.failure = "the model could not be loaded: a tensor is missing"
    registry.loaded.set()
    for stream in (False, True):
        response = await http.post("/generate", json=BODY | {"stream": stream})
        assert response.status_code == 503 and response.headers["retry-after"] == "7"
        assert "a tensor is missing" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "body", "error"),
    [
        ("/generate", BODY, "event: error\ndata: "),
        ("/v1/completions", {"model": "decoder", "prompt": "Once"}, "event: error\ndata: "),
        ("/api/generate", {"model": "decoder", "prompt": "Once"}, ""),
    ],
)
async def test_a_stream_gets_its_status_before_its_model_is_loaded(
    bench, http, registry, monkeypatch, path, body, error
):
    """The status is sent while the model is still loading. The stream then has the answer, or one error event."""
    monkeypatch.setattr(route, "COMMIT_SECONDS", 0.0)
    for failure in ("", "the model could not be loaded: it is broken"):
        registry.failure = failure
        registry.loaded.clear()
        asking = asyncio.create_task(http.post(path, json=body | {"stream": True}))
        for _ in range(200):
            await asyncio.sleep(0)
        registry.loaded.set()
        if not failure:
            await answer(bench)
            bench.sent.clear()
        response = await asking
        assert response.status_code == 200
        assert response.text.startswith(": ping\n\n") == bool(error)
        assert ("it is broken" in response.text) == bool(failure)
        if failure:
            last = response.text.removeprefix(": ping\n\n").removeprefix(error)
            assert "it is broken" in json.dumps(json.loads(last))
        assert registry.held == 0


@pytest.mark.parametrize("failure", ["", "the model could not be loaded: it is broken"])
async def test_a_stream_of_a_recording_gets_its_status_before_its_model_is_loaded(
    bench, http, registry, monkeypatch, failure
):
    async def transcribe(runtime, call, spec, emit):
        assert registry.held == 1
        emit("Good day.")
        return Transcript("Good day.", "en", 1.0, [])

    monkeypatch.setattr(route, "COMMIT_SECONDS", 0.0)
    monkeypatch.setattr(audio, "transcribe", transcribe)
    registry.failure = failure
    form = {"data": {"model": "resting", "stream": "true"}, "files": {"file": ("a.wav", wav(recording(0.1)))}}
    asking = asyncio.create_task(http.post("/v1/audio/transcriptions", **form))
    async with asyncio.timeout(HANG_SECONDS):
        while not registry.has_waited:
            await asyncio.sleep(0.001)
    for _ in range(200):
        await asyncio.sleep(0)
    assert bench.state.recordings == 1
    registry.loaded.set()
    response = await asking
    assert response.status_code == 200 and response.text.startswith(": ping\n\n")
    assert ("it is broken" in response.text) == bool(failure)
    assert ("transcript.text.done" in response.text) != bool(failure)
    assert registry.held == 0 and bench.state.recordings == 0
    # A load that has ended before keeps its status.
    monkeypatch.setattr(route, "COMMIT_SECONDS", HANG_SECONDS)
    early = await http.post("/v1/audio/transcriptions", **form)
    assert early.status_code == (503 if failure else 200) and ": ping" not in early.text
    assert registry.held == 0 and bench.state.recordings == 0


async def test_lists_have_models_that_are_not_loaded(http, registry):
    registry.models["resting"].failed("a tensor is missing", 0.0)
    models = {model["id"]: model for model in (await http.get("/v1/models")).json()["data"]}
    assert models["resting"]["status"] == {"value": "failed", "reason": "a tensor is missing"}
    assert models["decoder"]["max_model_len"] > 0 and "max_model_len" not in models["resting"]
    assert (await http.get("/v1/models/gpt-4o")).json()["id"] == "decoder"
    assert (await http.get("/v1/models/resting")).json()["id"] == "resting"
    tags = {model["name"] for model in (await http.get("/api/tags")).json()["models"]}
    running = {model["name"] for model in (await http.get("/api/ps")).json()["models"]}
    assert "resting:latest" in tags and "resting:latest" not in running
    registry.models["resting"].spec = ModelSpec("resting", "/files/that/are/gone", "auto")
    assert tags == {model["name"] for model in (await http.get("/api/tags")).json()["models"]}
    registry.models["resting"].state = "loading"
    assert "resting:latest" in {model["name"] for model in (await http.get("/api/ps")).json()["models"]}
    info = (await http.get("/info")).json()["on_demand"]
    assert {model["name"]: model["state"] for model in info["models"]}["resting"] == "loading"


async def test_languages_of_models_that_are_not_loaded(bench, http, registry):
    """The language lists of LibreTranslate, of DeepL, and of DeepL's glossaries include models that are not loaded."""
    languages = bench.runtime.texts.pop("translator").languages
    for name in ("resting", "translator"):
        registry.described.append((registry.models[name], Description(("translate",), languages, True)))
    assert {language["code"] for language in (await http.get("/languages")).json()} >= {"en"}
    assert (await http.get("/frontend/settings")).json()["language"]["target"]
    assert {language["language"] for language in (await http.get("/v2/languages")).json()} >= {"EN"}
    assert (await http.get("/v2/glossary-language-pairs")).json()["supported_languages"]
    bench.runtime.names = ModelNames((), {"translate": "decoder"})
    assert (await http.get("/languages")).status_code in (400, 422)


async def test_default_models_of_routes_and_operations(bench, http, registry):
    """`/info` and the example at the start mention a default model only while it is loaded."""
    bench.runtime.names = ModelNames((), {"embed": "resting", "/v1/completions": "decoder"})
    answer = await http.get("/info")
    assert answer.status_code == 200 and answer.json()["defaults"]["/v1/completions"] == "decoder"
    assert "/embed" not in answer.json()["defaults"]
    assert "/embed " not in greeting("http://127.0.0.1:8000", bench.runtime, needs_key=False)


@pytest.mark.parametrize("model", [{"model": "decoder"}, {"model": "gpt-4o"}, {}])
async def test_keep_alive_is_set_when_the_request_has_ended(bench, http, registry, model):
    """`keep_alive` applies to the model that answered: the named one, the one of an alias, or the default model."""
    registry.loaded.set()
    about = Description(("generate",), bench.runtime.texts["decoder"].languages, False)
    registry.described.append((registry.models["decoder"], about))
    asking = asyncio.create_task(
        http.post("/api/generate", json=model | {"prompt": "Once", "stream": False, "keep_alive": "1h30m"})
    )
    await answer(bench)
    assert (await asking).status_code == 200
    assert registry.kept == [("decoder", 5400.0)]
    refused = await http.post("/api/generate", json={"model": "decoder", "prompt": "Once", "keep_alive": "soon"})
    assert refused.status_code == 400 and "keep_alive" in refused.text


@pytest.mark.parametrize("value", [0, "0", 0.0, "0s", "-0m"])
@pytest.mark.parametrize("path", ["/api/generate", "/api/chat", "/api/embed", "/api/embeddings"])
@pytest.mark.parametrize("more", [{}, {"stream": False}])
async def test_keep_alive_0_without_a_text_unloads_and_does_not_load(http, registry, path, value, more):
    """No load is possible in this test: `registry.loaded` is not set."""
    of_texts = path.startswith("/api/embed")
    answer = await http.post(path, json={"model": "resting:latest", "keep_alive": value, **({} if of_texts else more)})
    assert answer.status_code == 200 and registry.released == ["resting"] and registry.held == 0
    last = json.loads(answer.text.splitlines()[-1])
    if not of_texts:
        assert last["done"] is True and last["done_reason"] == "unload" and last["model"] == "resting"
    missing = await http.post(path, json={"model": "no-such-model", "keep_alive": value})
    assert missing.status_code == 404


async def test_other_values_of_keep_alive_without_a_text_load(http, registry, bench):
    registry.loaded.set()
    for value in ("5m", -1, None, ""):
        answer = await http.post("/api/generate", json={"model": "decoder", "keep_alive": value, "stream": False})
        assert answer.json()["done_reason"] == "load" and not registry.released
    bench.runtime.registry = None
    answer = await http.post("/api/generate", json={"model": "decoder", "keep_alive": 0, "stream": False})
    assert answer.json()["done_reason"] == "load", "all models stay loaded on a server without models on demand"


async def test_show_does_not_load_a_model(bench, http, registry):
    """No load is possible in this test: `registry.loaded` is not set."""
    languages = bench.runtime.texts["decoder"].languages
    about = Description(("generate", "chat"), languages, False, "llama", 0, 64, 512, "{{ tools }} {{ messages }}")
    registry.described.append((registry.models["resting"], about))
    shown = await http.post("/api/show", json={"model": "resting:latest"})
    assert shown.status_code == 200 and registry.held == 0
    assert shown.json()["capabilities"] == ["completion", "tools"] and shown.json()["template"] == about.template
    info = {"general.architecture": "llama", "llama.context_length": 512, "llama.embedding_length": 64}
    assert shown.json()["model_info"] == info and shown.json()["details"]["family"] == "llama"
    loaded = await http.post("/api/show", json={"model": "gpt-4o"})
    assert loaded.status_code == 200 and loaded.json()["model_info"]["general.parameter_count"] > 0
    assert (await http.post("/api/show", json={"model": "no-such-model"})).status_code == 404
    registry.described.clear()
    assert (await http.post("/api/show", json={"model": "resting"})).status_code == 503


@pytest.mark.parametrize(
    ("value", "seconds"),
    [(0, 0.0), (300, 300.0), (-1, None), ("5m", 300.0), ("-1m", None), ("1.5s", 1.5), ("90", 90.0), ("1h2m3s", 3723.0)],
)
def test_durations_of_keep_alive(value, seconds):
    assert keep_alive_seconds(value) == seconds


@pytest.mark.parametrize("value", ["soon", "5 m", True, [], float("nan"), 1e300, "m", "9" * 100])
def test_refused_durations_of_keep_alive(value):
    with pytest.raises(InvalidRequest):
        keep_alive_seconds(value)


async def test_models_are_loaded_and_unloaded_over_http(http, registry):
    assert (await http.post("/models/resting/load", json={})).json()["state"] == "loaded"
    assert (await http.post("/models/unload", json={"model": "resting"})).json()["state"] == "declared"
    assert (await http.post("/api/v1/models/load", json={"model": "resting"})).json()["state"] == "loaded"
    assert (await http.post("/models/resting/unload")).json()["state"] == "declared"
    assert (await http.post("/models/unknown/load", json={})).status_code == 404
    assert (await http.post("/models/load", json={})).status_code == 422
    refused = await http.post("/models/new/load", json={"source": "/somewhere"})
    assert refused.status_code == 403 and "--allow-admin-load" in refused.text


async def test_only_admin_keys_load_models(tmp_path):
    keys = tmp_path / "keys.toml"
    keys.write_text('[keys.boss]\nkey = "the-boss"\nadmin = true\n[keys.user]\nkey = "the-user"\n')
    bench = Bench(tmp_path, Settings(api_key_file=keys))
    on_demand(bench, tmp_path)
    transport = httpx.ASGITransport(bench.app)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        for key, status in (("the-boss", 200), ("the-user", 403), ("nobody", 401)):
            headers = {"authorization": f"Bearer {key}"}
            assert (await client.post("/models/load", json={"model": "resting"}, headers=headers)).status_code == status
            assert (await client.post("/models/resting/unload", headers=headers)).status_code == status
    bench.runtime.pools.close()


async def test_a_server_without_models_on_demand_loads_none(bench, http):
    bench.become_ready()
    response = await http.post("/models/decoder/load", json={})
    assert response.status_code == 422 and "--memory" in response.text
    assert "on_demand" not in (await http.get("/info")).json()
    assert "status" not in (await http.get("/v1/models")).json()["data"][0]
