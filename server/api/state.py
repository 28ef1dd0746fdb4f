"""What the routes share: settings, the engine's client, tokenizers, metrics. Made once, by the composition root."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TypeVar

from starlette.requests import Request

from server.api.checkpoint_text import CheckpointText
from server.api.entailment import entailment
from server.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, NotReady
from server.ipc.client import EngineClient
from server.ipc.descriptions import ModelInfo, Task
from server.metrics import Metrics
from server.settings import Settings
from server.text.tokenizer import Encoding, Tokenizer

DEFAULT_TIMEOUT_MS = 60_000
TOKENIZER_THREADS = 2

_ROUTES: Mapping[Task, tuple[str, ...]] = {
    "generate": ("/generate",),
    "translate": ("/translate",),
    "embed": ("/embed", "/embed_all", "/similarity"),
    "classify": ("/classify",),
    "rerank": ("/rerank",),
    "fill_mask": ("/fill_mask",),
    "token_classify": ("/token_classify",),
    "question_answer": ("/question_answer",),
    "transcribe": ("/v1/audio/transcriptions",),
}

Result = TypeVar("Result")


@dataclass(frozen=True)
class Model:
    """A loaded model as the routes see it: what the engine says of it, and how its text becomes ids."""

    info: ModelInfo
    text: CheckpointText

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    def languages(self) -> list[str]:
        """Every translation on offer, as `source-target`; every language that a speech model knows."""
        if self.text.speech is not None:
            return list(self.text.speech.languages) or ["en"]
        if "translate" not in self.info.tasks:
            return []
        return [f"{source}-{target}" for source, target in self.text.languages.pairs()]

    def routes(self) -> list[str]:
        """The routes that this model answers."""
        routes = [route for task in self.info.tasks for route in _ROUTES[task]]
        if self.text.speech is not None and self.text.speech.translates:
            routes.append("/v1/audio/translations")
        if "classify" in self.info.tasks and entailment(self.info.labels) is not None:
            routes.append("/zero_shot_classify")
        return routes


@dataclass
class State:
    """All that lives as long as the server.

    fresh: whether the worker is ready and was heard of lately. failed: whether the supervisor has given up.
    started: everything was loaded once. draining: nothing new is taken. answering: requests that are being answered;
    recordings: those of them that hold a recording. secret: known to this process alone.
    """

    settings: Settings
    client: EngineClient
    metrics: Metrics
    fresh: Callable[[], bool]
    failed: Callable[[], bool]
    keys: tuple[bytes, ...] = ()
    texts: Mapping[str, CheckpointText] = field(default_factory=dict)
    started: bool = False
    draining: bool = False
    answering: int = 0
    recordings: int = 0
    secret: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)
    threads: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(TOKENIZER_THREADS, thread_name_prefix="tokenizer")
    )

    @property
    def ready(self) -> bool:
        return self.started and not self.draining and self.fresh()

    def cache_salt(self, key: bytes) -> str:
        """What stands for an API key in the worker's prefix cache: it tells keys apart and nothing else about them."""
        return hmac.new(self.secret, key, hashlib.sha256).hexdigest()[:32]

    def loaded(self) -> list[Model]:
        """All models, in the order they were named."""
        infos = self.client.models
        return [Model(infos[name], text) for name, text in self.texts.items() if name in infos]

    def candidates(self, name: str | None, tasks: Sequence[str], route: str) -> list[Model]:
        """The models that may answer a route: the one that was named, or all whose tasks fit; adapters only by name.

        Raises NotReady while loading, ModelNotFound for an unknown name, InvalidRequest for a model of another task.
        """
        models = self.loaded()
        if not models:
            raise NotReady("the models are loading; try again soon", retry_after=2)
        if name is None:
            fitting = [model for model in models if set(tasks) & set(model.info.tasks) and not model.info.adapter_of]
            if not fitting:
                raise InvalidRequest(f"no loaded model answers {route}", "model")
            return fitting
        for model in models:
            if model.name == name:
                if set(tasks) & set(model.info.tasks):
                    return [model]
                served = ", ".join(model.routes()) or "no task route"
                raise InvalidRequest(f"the model `{model.name}` does not answer {route}; it answers {served}", "model")
        raise ModelNotFound("no loaded model has this name; `GET /info` lists the models", "model")

    def any_model(self, name: str | None) -> Model:
        """The named model, or the first one: for routes that need a tokenizer only."""
        models = self.loaded()
        if not models:
            raise NotReady("the models are loading; try again soon", retry_after=2)
        for model in models:
            if name is None or model.name == name:
                return model
        raise ModelNotFound("no loaded model has this name; `GET /info` lists the models", "model")

    async def in_thread(self, work: Callable[[], Result]) -> Result:
        """Run text work away from the event loop, a bounded number at once."""
        return await asyncio.get_running_loop().run_in_executor(self.threads, work)

    def check_characters(self, texts: Sequence[str], param: str) -> None:
        """Raises ContextLengthExceeded for a text that is too long to be worth tokenising."""
        limit = self.settings.max_text_characters
        longest = max(map(len, texts), default=0)
        if longest > limit:
            raise ContextLengthExceeded(f"`{param}` holds a text of {longest} characters; the limit is {limit}", param)

    async def encode(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        *,
        pairs: Sequence[str] | None = None,
        param: str,
        add_special_tokens: bool = True,
        offsets: bool = False,
    ) -> list[Encoding]:
        """Token ids of texts, in a thread, after the cheap check of their characters."""
        self.check_characters((*texts, *(pairs or ())), param)
        started = time.perf_counter()
        with self.client.preparing():
            encodings = await self.in_thread(
                lambda: tokenizer.encode(texts, pairs=pairs, add_special_tokens=add_special_tokens, offsets=offsets)
            )
        self.metrics.tokenize_seconds.observe(time.perf_counter() - started)
        return encodings

    def deadline(self, request: Request, timeout_ms: int | None) -> float:
        """When the request's time is over, on the monotonic clock: the tighter of body field and header.

        Raises InvalidRequest for a header that is no number of milliseconds.
        """
        limit = int(self.settings.max_timeout_seconds * 1000)
        header = request.headers.get("x-timeout-ms")
        if header is not None:
            if not (header.isascii() and header.isdigit() and 1 <= int(header[:12]) <= limit):
                raise InvalidRequest(f"the header X-Timeout-Ms has to be from 1 to {limit}", "x-timeout-ms")
            timeout_ms = min(int(header), timeout_ms or limit)
        if timeout_ms is not None and timeout_ms > limit:
            raise InvalidRequest(f"`timeout_ms` has to be at most {limit}", "timeout_ms")
        return arrival(request) + (timeout_ms or DEFAULT_TIMEOUT_MS) / 1000


def of(request: Request) -> State:
    """The state of the application that a request belongs to."""
    state = request.app.state.triptych
    assert isinstance(state, State)
    return state


def arrival(request: Request) -> float:
    """When the request's first bytes were seen, on the monotonic clock."""
    seconds = request.scope["triptych.arrival"]
    assert isinstance(seconds, float)
    return seconds


def cache_salt(request: Request) -> str:
    """What keeps a request's prompts apart from those of other API keys; empty where no key is asked for."""
    salt = request.scope["triptych.cache_salt"]
    assert isinstance(salt, str)
    return salt
