"""Build a server from its settings: create the worker pool, the client and the application.

Only this module and `server.cli` import all parts of the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from starlette.types import ASGIApp

from server.api.lifecycle import Lifecycle
from server.api.serve import Endpoints, serve, stop_on_signals
from server.api.state import State
from server.api.telemetry.telemetry import Telemetry
from server.declared_models import LateSources, first_directories, first_models, text_parts, with_own_drafts
from server.errors import CheckpointError, NotReady, StartError
from server.greeting import greeting, ready_lines
from server.ipc.client.client import EngineClient
from server.ipc.client.queue import default_limits
from server.ipc.wire.descriptions import (
    Device,
    EngineOptions,
    KVCacheDType,
    ModelSpec,
)
from server.ipc.wire.fit import shortage
from server.ipc.workers.supervisor import SupervisorLimits
from server.ipc.workers.worker_pool import WorkerPool
from server.ipc.workers.worker_process import WORKER_COMMAND
from server.load_progress import LoadProgress
from server.metrics import Metrics
from server.model_sources import (
    check_names,
    find_adapters,
    find_answer_prompts,
    find_speculations,
    find_translation_prompts,
    model_specs,
    resolved,
    stated_languages,
)
from server.operations.admission import Admission, default_memory_bytes, memory_within
from server.operations.glossary_store import GlossaryStore
from server.operations.model_names import ModelNames, pairs
from server.operations.on_demand.registry import ModelRegistry
from server.operations.pools import Pools
from server.operations.runtime import Runtime
from server.operations.sequence_sets import SequenceSets
from server.operations.served_model import ServedModel
from server.settings.entries import split_entry
from server.settings.read import load
from server.settings.settings import Settings
from server.system.malloc import share_heaps
from server.system.memory import free_memory_bytes, unused_limit_bytes, usable_memory_bytes
from server.system.output import show
from server.text import checkpoint_text
from server.text.chats.chat import ChatRenderer
from server.text.chats.chat_forms import with_forms
from server.text.checkpoint_text import CheckpointText
from server.text.languages.translation_prompts import InstructionPrompt
from weights.errors import ResolveError

if TYPE_CHECKING:
    from server.api.connection.arrivals import Arrivals
    from server.api.telemetry.tracing import Tracing

log = logging.getLogger("triptych")

COALESCE_SECONDS = 0.02
"""Longest time that a request to an idle worker is held back, so that requests which arrive together share a step.

Reading about thirty requests takes this long.
"""


class Server:
    """A server with its worker processes, engine client and HTTP application.

    worker: command that starts a worker process.
    Raises StartError for invalid settings, and CheckpointError for models that cannot be found.
    """

    def __init__(self, settings: Settings, worker: Sequence[str]) -> None:
        share_heaps()
        self.settings = settings
        self.directories = first_directories(settings)
        self.speculations = find_speculations(settings, self.directories)
        self.adapters = find_adapters(settings, self.directories)
        self.languages = stated_languages(settings.languages, list(self.directories))
        self.answer_prompts = find_answer_prompts(settings, list(self.directories))
        self.translation_prompts = find_translation_prompts(settings, list(self.directories))
        metrics = Metrics()
        sequences, tokens = default_limits(usable_memory_bytes())
        memory, left = settings.max_request_memory, unused_limit_bytes()
        default_memory = default_memory_bytes(usable_memory_bytes())
        memory = memory or default_memory if left is None else memory_within(left, memory, default_memory)
        client = EngineClient(
            Telemetry(metrics, LoadProgress(bars=settings.log_format == "text")),
            settings.max_queue_requests or sequences,
            settings.max_queue_tokens or tokens,
            COALESCE_SECONDS,
            settings.stale_seconds,
        )
        self.specs = model_specs(self.directories, settings, self.speculations, self.adapters, self.answer_prompts)
        self.pool = _pool([] if settings.on_demand else self.specs, settings, client, worker)
        self.texts: dict[str, CheckpointText] = {}
        self.state = State(
            settings=settings,
            runtime=Runtime(
                client,
                metrics,
                self.texts,
                settings.max_text_characters,
                auto_truncate=settings.auto_truncate,
                special_tokens_in_texts=settings.special_tokens_in_texts,
                pools=Pools(settings.max_recordings),
                pivot=settings.pivot,
                names=ModelNames(pairs(settings.alias), dict(pairs(settings.default_model))),
                glossaries=GlossaryStore(settings.glossaries),
                sequence_sets=SequenceSets(settings.allowed_sequences_memory, client.forget_sequences),
                admission=Admission(memory, settings.max_requests, len(self.directories) + len(self.adapters)),
            ),
            fresh=lambda: self.pool.num_ready > 0,
            failed=lambda: self.lifecycle.failed,
            workers=lambda: (self.pool.num_ready, self.pool.num_workers),
            keys=settings.keys(),
            tracing=_tracing(settings),
        )
        if settings.on_demand:
            self.state.runtime.registry = self._registry(client)
        check_names(settings, [name for spec in self.specs for name in (spec.name, *spec.adapters)])
        if settings.default_model:
            from server.api.dialects.registry import check_defaults

            check_defaults(settings.default_model)
        self.lifecycle = Lifecycle(self.state, self.pool, self._load_texts, self._preload)

    def _registry(self, client: EngineClient) -> ModelRegistry:
        """Create the registry of the models that are loaded when a request asks for them."""
        settings, runtime = self.settings, self.state.runtime

        def forget(name: str) -> None:
            client.forget_model(name, "the model was unloaded")
            runtime.pair_templates.pop(name, None)

        specs = with_own_drafts({spec.name: spec for spec in self.specs})
        return ModelRegistry(
            first_models(settings, specs),
            client.loads,
            text_parts(self._text_of, self.texts, runtime.find, forget),
            LateSources(settings, {spec.name: spec for spec in specs}),
            settings.memory,
            settings.kv_cache_memory,
            max(settings.workers, 1),
            Telemetry(runtime.metrics),
            device_bytes=lambda: self.pool.device_bytes,
        )

    async def _preload(self) -> None:
        """Load the models of `--preload`. A model that cannot be loaded is logged, and the others are served."""
        registry = self.state.runtime.registry
        if registry is None:
            return
        registry.start()
        wanted = list(registry.models.values())
        if "all" not in self.settings.preload:
            wanted = [registry.models[name] for name in self.settings.preload]
        for model in wanted:
            with contextlib.suppress(NotReady):
                await registry.load(model)

    def _text_of(self, spec: ModelSpec) -> CheckpointText:
        """Read the text parts of a model that is loaded on demand.

        Raises CheckpointError for files that cannot be read, for a chat template that loses the user's text, and for a
        draft model with other tokens.
        """
        pair, instruction = self.languages.get(spec.name, ""), self.translation_prompts.get(spec.name)
        renderer = self.state.runtime.chat_renderer
        text = _load_text(spec.name, Path(spec.directory), pair, renderer, instruction)
        if text.chat_templates.problem is not None:
            raise CheckpointError(f"{spec.name}: {text.chat_templates.problem}")
        draft = "" if spec.speculation is None else spec.speculation.draft_directory
        if draft:
            checkpoint_text.check_same_tokens(spec.name, text, _load_text(f"{spec.name} draft", Path(draft)))
        return replace(text, answer_prompt=self.answer_prompts.get(spec.name))

    async def serve_until_signal(self, endpoints: Endpoints) -> None:
        """Serve until a signal stops the process. Prints when the server is ready, and when it has stopped."""
        stop = asyncio.Event()
        stop_on_signals(stop, self.lifecycle, lambda: endpoints.read_certificates_again(self.settings))
        await self.serve(endpoints, stop, lambda url: self._greet(url, endpoints.metrics_url))
        self._say("Triptych has stopped")

    async def serve(self, endpoints: Endpoints, stop: asyncio.Event, on_ready: Callable[[str], None]) -> None:
        """Serve until `stop` is set.

        endpoints: the open listening sockets. on_ready: called with the URL when the models are loaded.
        """
        log.info("%s %s", "declared:" if self.settings.on_demand else "loading", ", ".join(self.directories))
        self.lifecycle.begin()
        app, monitoring, arrivals = await asyncio.to_thread(self._create_applications)
        await serve(app, monitoring, self.lifecycle, endpoints, stop, lambda: on_ready(endpoints.url), arrivals)

    def _create_applications(self) -> tuple[ASGIApp, ASGIApp, Arrivals]:
        """Create the API application, the application for metrics and probes, and the checks of arriving requests.

        Importing all routes takes 0.4 s, so `serve` calls this in a thread while the workers import torch.
        """
        from server.api.app import create_api, create_monitoring
        from server.api.connection.arrivals import Arrivals

        app = create_api(self.state, self.lifecycle.lifespan)
        return app, create_monitoring(self.state), Arrivals(self.state)

    async def _load_texts(self) -> None:
        if self.settings.on_demand:
            return
        for name, directory in self.directories.items():
            pair, instruction = self.languages.get(name, ""), self.translation_prompts.get(name)
            renderer = self.state.runtime.chat_renderer
            text = await asyncio.to_thread(_load_text, name, directory, pair, renderer, instruction)
            self.texts[name] = replace(text, answer_prompt=self.answer_prompts.get(name))
        for adapter in self.adapters:
            self.texts[adapter.name] = self.texts[adapter.model]
        for name, speculation in self.speculations.items():
            directory = self.directories.get(speculation.draft_model) or Path(speculation.draft_directory)
            if speculation.draft_model or speculation.draft_directory:
                draft = await asyncio.to_thread(_load_text, f"{name} draft", directory)
                checkpoint_text.check_same_tokens(name, self.texts[name], draft)

    def _greet(self, url: str, metrics_url: str) -> None:
        for model in self.state.runtime.loaded():
            problems = model.language_problem, model.late_interaction_problem, model.lost_roles_problem
            for problem in (shortage(model.info), *problems):
                if problem is not None:
                    log.warning("%s", problem)
        if self.settings.log_format == "json":
            for line in ready_lines(url, self.state.runtime):
                log.info("%s", line.strip())
        else:
            show(greeting(url, self.state.runtime, bool(self.state.keys), metrics_url))

    def _say(self, text: str) -> None:
        """Show a message to the operator: on standard output, or as a log line if logs are JSON."""
        if self.settings.log_format == "json":
            log.info("%s", text)
        else:
            show(text)


def create_app(settings: Settings | None = None, worker: Sequence[str] = WORKER_COMMAND) -> ASGIApp:
    """Create an application for an ASGI server that supports lifespan events, for example uvicorn or hypercorn.

    settings: settings of the server; None to read them from the environment (`TRIPTYCH_MODELS` and so on).
    worker: command that starts a worker process.
    The ASGI server binds the address, so `host` and `port` have no effect. Without API keys, bind a loopback address.
    Raises StartError for invalid settings and for settings that only `triptych serve` has, and CheckpointError for
    models that cannot be found.
    """
    from server.api.app import create_api

    settings = load({}) if settings is None else settings
    if settings.tls_certificate is not None or settings.metrics_port is not None:
        name = "metrics_port" if settings.tls_certificate is None else "tls_certificate"
        raise StartError(f"{name}: only `triptych serve` has this setting; another ASGI server has its own")
    server = Server(settings, worker)
    return create_api(server.state, server.lifecycle.unattended_lifespan)


def _pool(
    specs: list[ModelSpec],
    settings: Settings,
    client: EngineClient,
    worker: Sequence[str],
    checks_cache: bool = False,
) -> WorkerPool:
    cache_dtype = next((entry for entry in reversed(settings.kv_cache_dtype) if "=" not in entry), "auto")
    options = EngineOptions(
        max_batch_tokens=settings.max_batch_tokens,
        max_encode_tokens=settings.max_encode_tokens,
        max_batch_rows=settings.max_batch_rows,
        block_size=settings.block_size,
        kv_cache_bytes=settings.kv_cache_memory or 0,
        kv_spill_bytes=settings.kv_spill_memory or 0,
        threads=settings.threads,
        prefix_cache=settings.prefix_cache,
        batch_invariant=settings.batch_invariant,
        speculative_tokens=settings.speculative_tokens,
        kv_cache_dtype=cast(KVCacheDType, cache_dtype),
        free_memory_bytes=free_memory_bytes(),
        on_demand=settings.on_demand,
        memory_bytes=settings.memory or 0,
        packed_cache=str(settings.packed_cache.absolute()) if settings.packed_cache is not None else "",
        packed_cache_bytes=settings.packed_cache_size,
        checks_packed_cache=checks_cache,
    )
    limits = SupervisorLimits(
        stale_seconds=settings.stale_seconds,
        hang_seconds=settings.hang_seconds,
        loading_hang_seconds=settings.loading_hang_seconds,
        max_failures=settings.max_restarts,
    )
    return WorkerPool(specs, settings.device, options, client, settings.workers, limits, worker, settings.grace_seconds)


def _tracing(settings: Settings) -> Tracing | None:
    """Start the tracing of requests; None if the setting `traces` is off.

    Raises StartError if its packages or settings are missing.
    """
    if not settings.traces:
        return None
    try:
        from server.api.telemetry.tracing import start_tracing
    except ImportError:
        raise StartError("traces: install the packages for it: pip install 'triptych[otel]'") from None
    return start_tracing()


def _load_text(
    name: str,
    directory: Path,
    languages: str = "",
    renderer: ChatRenderer | None = None,
    instruction: InstructionPrompt | None = None,
) -> CheckpointText:
    """Read the text parts of a checkpoint: tokenizer, chat templates, languages and so on.

    name: name of the model, for messages.
    languages: the operator's language pair. instruction: the operator's prompt for translation.
    renderer: renders sample conversations, to find the content forms that the chat templates read; None to skip this.
    Raises CheckpointError. Its message is about the model if that is not supported, else about the text parts.
    """
    try:
        text = checkpoint_text.load(name, directory, languages, instruction)
        return text if renderer is None else replace(text, chat_templates=with_forms(text.chat_templates, renderer))
    except CheckpointError as error:
        raise CheckpointError(_model_problem(name, directory) or str(error)) from None


def _model_problem(name: str, directory: Path) -> str | None:
    """Say in one line why the model of a checkpoint is not supported. Reads no weights.

    Returns None for a supported model, for a `config.json` without `model_type`, and for files that cannot be read.
    """
    from models.checkpoint.checkpoint_heads import read_files
    from models.checkpoint.settings_files import read_settings
    from models.config import ConfigError

    try:
        config = read_settings(directory, "config.json")
        if config is not None and "model_type" not in config:
            return None
        read_files(directory).config()
    except ConfigError as error:
        return f"model {name!r}: {' '.join(str(error).split())}"
    except ResolveError:
        pass  # an unreadable file, which the text parts have reported
    return None


async def inspect(source: str, settings: Settings, worker: Sequence[str]) -> tuple[ServedModel, Device, str]:
    """Load a checkpoint in a worker process, and return the model, the device on which it runs, and a line about it.

    The worker has ended when this returns.

    source: `[NAME=]PATH_OR_HUB_ID`. worker: command that starts the worker process.
    Raises CheckpointError for a checkpoint that cannot be loaded, or cannot chat although it has a chat template.
    """
    try:
        name, source = split_entry(source)
    except ValueError:  # the name of the directory is not needed to describe a single checkpoint
        name = "model"
    directory = resolved(source)
    pair = settings.languages[-1].rpartition("=")[2] if settings.languages else ""
    prompts = find_answer_prompts(settings, [name])
    instruction = find_translation_prompts(settings, [name]).get(name)
    renderer = ChatRenderer()
    try:
        text = replace(_load_text(name, directory, pair, renderer, instruction), answer_prompt=prompts.get(name))
    finally:
        renderer.close()
    client = EngineClient(Telemetry(Metrics(), LoadProgress()), 1, 1)
    settings = settings.model_copy(update={"workers": 1})
    pool = _pool(
        model_specs({name: directory}, settings, {}, answering=prompts), settings, client, worker, checks_cache=True
    )
    try:
        await pool.start()
        model = ServedModel(client.models[name], text)
        if model.chat_problem is not None:
            raise CheckpointError(model.chat_problem)
        return model, client.device, pool.supervisors[0].about_device
    finally:
        await pool.stop()


def families() -> list[tuple[str, str]]:
    """List the supported model families: (name, architectures with their tasks), sorted. Reads no checkpoint."""
    from models.families import FAMILIES
    from models.families.shared.wrappers import WRAPPERS

    wrapped = [(kind, f"{wrapper.architecture} (generate)") for kind, wrapper in WRAPPERS.items()]
    families = {family.name: family for family in FAMILIES.values()}
    named = [
        (
            name,
            ", ".join(f"{architecture} ({', '.join(tasks)})" for architecture, tasks in family.architectures.items()),
        )
        for name, family in families.items()
    ]
    return sorted([*named, *wrapped])
