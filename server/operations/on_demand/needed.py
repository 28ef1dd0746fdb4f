"""Choose the declared models that a request needs: the named model, or the first model that can answer."""

from __future__ import annotations

from server.operations.model_names import PLACEHOLDER_NAMES, ModelNames
from server.operations.on_demand.declared import DeclaredModel, Description
from server.operations.on_demand.registry import ModelRegistry
from server.text.languages.languages import UnknownPair
from server.text.languages.pivots import OFF, chosen_pivot, connecting_languages, translations


async def needed_models(
    registry: ModelRegistry, names: ModelNames, pivot: str, operation: str, spec: object
) -> list[DeclaredModel]:
    """The models that a request needs; empty if no declared model can answer it.

    Looks for new models in `--models-dir` if a model is missing or not in memory.

    operation: name of the operation. spec: its specification; the field `model` or `name` may name a model.
    pivot: setting for the language between two translations.
    """
    found = await _chosen(registry, names, pivot, operation, spec)
    if found and all(model.is_in_memory for model in found):
        return found
    await registry.discover()
    return await _chosen(registry, names, pivot, operation, spec)


async def _chosen(
    registry: ModelRegistry, names: ModelNames, pivot: str, operation: str, spec: object
) -> list[DeclaredModel]:
    """The same as `needed_models`, but without looking for new models."""
    asked = getattr(spec, "model", None) or getattr(spec, "name", None)
    name = names.model(asked, operation, registry.models)
    if name is not None and name not in PLACEHOLDER_NAMES:
        found = registry.find(name)
        return [] if found is None else [found]
    described = [(model, about) for model, about in await registry.descriptions() if operation in about.operations]
    if operation in ("translate", "detect_language"):
        return _translators(described, pivot, spec)
    if operation in ("generate", "chat"):
        # A prompt without a model is continued rather than translated.
        described.sort(key=lambda pair: pair[1].is_encoder_decoder)
    return [model for model, _ in described[:1]]


def _translators(described: list[tuple[DeclaredModel, Description]], pivot: str, spec: object) -> list[DeclaredModel]:
    """The model that translates the request's pair of languages, or two models that do so through a pivot language.

    Returns only the first model if the request does not name both languages, or if no models translate them.
    """
    options = getattr(spec, "options", spec)
    source, target = getattr(options, "source_lang", None), getattr(options, "target_lang", None)
    for model, about in described:
        try:
            about.languages.match(source, target)
            return [model]
        except UnknownPair:
            continue
    if source is None or target is None or pivot == OFF:
        return [model for model, _ in described[:1]]
    offers = [about.languages for _, about in described]
    through = chosen_pivot(connecting_languages(offers, source, target), pivot)
    if through is None:
        return [model for model, _ in described[:1]]
    indices = [next(iter(translations(offers, *pair)))[0] for pair in ((source, through), (through, target))]
    return [described[index][0] for index in dict.fromkeys(indices)]
