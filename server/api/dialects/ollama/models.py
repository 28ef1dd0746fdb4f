"""The routes of the Ollama dialect that describe models: `/api/tags`, `/api/ps`, `/api/show`, `/api/version`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, Field, field_validator

from server.api.fields.field_kinds import wish
from server.api.fields.fields import Body
from server.api.routes.error_shape import AnswerBody
from server.api.state import State
from server.errors import InvalidRequest, ModelNotFound, NotReady
from server.ipc.client.call import Call
from server.near_names import unknown_model
from server.operations.cost import Cost
from server.operations.on_demand.declared import DeclaredModel, Description, description_of
from server.operations.runtime import Runtime
from server.operations.served_model import ServedModel

API_VERSION = "0.13.0"
"""Version of Ollama's API that this dialect follows. Clients compare it with the version that they require."""
_NEVER = "9999-12-31T23:59:59Z"
_SHOWN = Field(description="dropped, and named: the model is shown as it is loaded")
_CAPABILITIES = {"generate": "completion", "embed": "embedding"}


class OllamaDetails(AnswerBody):
    """Details of a model. `parent_model`: for an adapter, the name of the model that it adapts; otherwise empty."""

    parent_model: str
    format: str
    family: str
    families: list[str]
    parameter_size: str
    quantization_level: str


class OllamaModel(AnswerBody):
    """A model in `/api/tags`. `digest`: a hash of its name and properties, not of its files."""

    name: str
    model: str
    modified_at: str
    size: int
    digest: str
    details: OllamaDetails


class OllamaTagsAnswer(AnswerBody):
    models: list[OllamaModel]


class OllamaRunningModel(AnswerBody):
    name: str
    model: str
    size: int
    digest: str
    details: OllamaDetails
    expires_at: str
    size_vram: int
    context_length: int


class OllamaPsAnswer(AnswerBody):
    models: list[OllamaRunningModel]


class OllamaVersionAnswer(AnswerBody):
    version: str


class OllamaShowAnswer(AnswerBody):
    """The answer of `/api/show`. `template`: the chat template (Jinja), empty if there is none."""

    model_config = ConfigDict(protected_namespaces=())

    modelfile: str
    parameters: str
    template: str
    details: OllamaDetails
    model_info: dict[str, Any]
    capabilities: list[str]
    modified_at: str


class OllamaShowBody(Body):
    """Body of `POST /api/show`. `name`: older name of the field `model`. Ollama's client sends both, and one is empty.

    The other fields are dropped, and named in `X-Ignored-Parameters`. In Ollama, `verbose` adds the vocabulary and the
    list of tensors, and the other fields replace parts of the shown description.
    """

    name: Annotated[str | None, Field(min_length=1, max_length=256)] = None
    verbose: Annotated[bool | None, wish(False), _SHOWN] = None
    system: Annotated[Any, wish(""), _SHOWN] = None
    template: Annotated[Any, wish(""), _SHOWN] = None
    options: Annotated[Any, wish({}), _SHOWN] = None

    @field_validator("model", "name", mode="before")
    @classmethod
    def _stated(cls, name: object) -> object:
        return None if name == "" else name


@dataclass(frozen=True)
class ModelNameSpec:
    """Request for the description of a model, which does not load the model."""

    name: str
    loads_model: ClassVar[bool] = False

    def cost(self, model: ServedModel) -> Cost:
        """Upper bounds of the request's work, for admission: all 0, because the engine does nothing."""
        return Cost(0, 0, 0)


def parse_show(body: OllamaShowBody) -> ModelNameSpec:
    """Convert the body to a `ModelNameSpec`. Raises InvalidRequest for a body without a model's name."""
    name = body.model or body.name
    if name is None:
        raise InvalidRequest("the field `model` is required", "model")
    return ModelNameSpec(name.removesuffix(":latest"))


@dataclass(frozen=True)
class ShownModel:
    """Data of `/api/show` about a model, loaded or not. details: the fields of `OllamaDetails`."""

    name: str
    about: Description
    details: dict[str, Any]
    modified_at: str


async def find_model(runtime: Runtime, call: Call, spec: ModelNameSpec) -> ShownModel:
    """Describe the model that a client names, without loading it.

    Raises ModelNotFound, or NotReady if the files of a model that is not loaded cannot be read.
    """
    registry = runtime.registry
    if registry is None:
        return _shown(runtime.model(spec.name))
    name = runtime.names.resolve(spec.name, registry.models)
    loaded = runtime.find(name)
    if loaded is not None:
        return _shown(loaded)
    declared = await registry.find_again(name)
    if declared is None:
        raise ModelNotFound(unknown_model(name, list(registry.models)), "model")
    about = await registry.description(declared)
    if about is None:
        raise NotReady("the files of the model cannot be read")
    details = _declared(declared)["details"] | {"family": about.family, "families": [about.family]}
    if about.parameters:
        details["parameter_size"] = _parameter_size(about.parameters)
    if name != declared.name:
        details["parent_model"] = declared.name
    return ShownModel(name, about, details, _time_of(declared))


def _shown(model: ServedModel) -> ShownModel:
    return ShownModel(model.name, description_of(model), _details(model), _modified_at(model))


def show(body: OllamaShowBody, model: ShownModel) -> dict[str, Any]:
    """The answer of `/api/show`. Unknown numbers, such as the parameter count, are left out."""
    about = model.about
    numbers = {
        "general.parameter_count": about.parameters,
        f"{about.family}.context_length": about.max_input_tokens,
        f"{about.family}.embedding_length": about.hidden_size,
    }
    return {
        "modelfile": f"FROM {model.name}",
        "parameters": "",
        "template": about.template,
        "details": model.details,
        "model_info": {"general.architecture": about.family} | {key: value for key, value in numbers.items() if value},
        "capabilities": _capabilities(about),
        "modified_at": model.modified_at,
    }


def tags(state: State, path: Mapping[str, str]) -> dict[str, Any]:
    """The answer of `/api/tags`: all models, loaded or not."""
    loaded = [_model(model) | {"modified_at": _modified_at(model)} for model in state.runtime.loaded()]
    others = [_declared(model) | {"modified_at": _time_of(model)} for model in _not_loaded(state.runtime)]
    return {"models": loaded + others}


def running(state: State, path: Mapping[str, str]) -> dict[str, Any]:
    """The answer of `/api/ps`: all models in memory, and those that are being loaded."""
    runtime, registry = state.runtime, state.runtime.registry
    on_gpu = runtime.client.device != "cpu"
    loaded = [
        _model(model)
        | {
            "expires_at": _expires_at(None if registry is None else registry.find(model.name)),
            "size_vram": model.info.weight_bytes + model.info.kv_bytes if on_gpu else 0,
            "context_length": model.max_input_tokens,
        }
        for model in runtime.loaded()
    ]
    unknown = {"expires_at": _NEVER, "size_vram": 0, "context_length": 0}
    loading = [_declared(model) | unknown for model in _not_loaded(runtime) if model.state == "loading"]
    return {"models": loaded + loading}


def _not_loaded(runtime: Runtime) -> list[DeclaredModel]:
    """The models that can be loaded on demand and are not loaded; empty if all models are loaded at the start."""
    loaded = {model.name for model in runtime.loaded()}
    declared = {} if runtime.registry is None else runtime.registry.models
    return [model for model in declared.values() if model.name not in loaded]


def _expires_at(declared: DeclaredModel | None) -> str:
    """Time (ISO 8601, UTC) at which a model is unloaded if no request comes; the year 9999 for never."""
    expires = None if declared is None else declared.expires_at
    if expires is None:
        return _NEVER
    moment = time.time() + max(expires - time.monotonic(), 0.0)
    return _iso(moment)


def _declared(model: DeclaredModel) -> dict[str, Any]:
    """Describe a model that is not loaded, from its files alone. `size`: bytes of the files."""
    details: dict[str, Any] = {"parent_model": "", "format": "", "family": "", "families": [], "parameter_size": ""}
    details["quantization_level"] = model.spec.quantization or ""
    return _entry(model.name, model.disk_bytes, f"{model.name} {model.disk_bytes}", details)


def _time_of(model: DeclaredModel) -> str:
    """Time (ISO 8601, UTC) at which the model's directory was changed last; the year 1970 if it is gone."""
    try:
        return _iso(Path(model.spec.directory).stat().st_mtime)
    except OSError:
        return _iso(0)


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def version(state: State, path: Mapping[str, str]) -> dict[str, str]:
    """The answer of `/api/version`."""
    return {"version": API_VERSION}


def _model(model: ServedModel) -> dict[str, Any]:
    info = model.info
    identity = f"{info.name} {info.architecture} {info.parameters} {info.weight_bytes} {info.dtype} {info.quantization}"
    return _entry(info.name, info.weight_bytes, identity, _details(model))


def _entry(name: str, size: int, identity: str, details: dict[str, Any]) -> dict[str, Any]:
    """Describe a model in the fields that `/api/tags` and `/api/ps` share. identity: text that is hashed."""
    name = name if ":" in name else f"{name}:latest"
    digest = hashlib.sha256(identity.encode()).hexdigest()
    return {"name": name, "model": name, "size": size, "digest": digest, "details": details}


def _details(model: ServedModel) -> dict[str, Any]:
    info = model.info
    return {
        "parent_model": info.adapter_of,
        "format": "",
        "family": info.family,
        "families": [info.family],
        "parameter_size": _parameter_size(info.parameters),
        "quantization_level": info.quantization or info.dtype,
    }


def _parameter_size(parameters: int) -> str:
    for unit, name in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if parameters >= unit:
            return f"{parameters / unit:.1f}{name}"
    return str(parameters)


def _capabilities(about: Description) -> list[str]:
    found = [name for operation, name in _CAPABILITIES.items() if operation in about.operations]
    if "chat" in about.operations:
        found += [
            name
            for name, variable in (("tools", "tools"), ("thinking", "enable_thinking"))
            if variable in about.template
        ]
    return found


def _modified_at(model: ServedModel) -> str:
    return _iso(model.text.directory.stat().st_mtime)
