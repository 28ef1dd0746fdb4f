"""Languages of DeepL: `/v2/languages`, and `/v3/languages` with the features of each language."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import RootModel

from server.api.dialects.deepl.common import ERRORS
from server.api.routes.error_shape import AnswerBody
from server.api.routes.get_route import GetRoute
from server.api.state import State
from server.errors import InvalidRequest
from server.text.languages.offered_languages import OfferedLanguage, language_label, offered_languages

_REGIONAL_TARGETS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "en": (("en-GB", "English (British)"), ("en-US", "English (American)")),
    "pt": (("pt-BR", "Portuguese (Brazilian)"), ("pt-PT", "Portuguese (European)")),
}
"""Target languages that DeepL lists only with a region: language code to (code, name) of each regional variant."""
_TRANSLATION_FEATURES: Mapping[str, Mapping[str, bool]] = {
    "formality": {"needs_target_support": True},
    "tag_handling": {"needs_source_support": True, "needs_target_support": True},
    "glossary": {"needs_source_support": True, "needs_target_support": True},
    "auto_detection": {"needs_source_support": True},
}
"""Features of translations, and which language of a pair has to support each of them."""
_RESOURCES: Mapping[str, Mapping[str, Mapping[str, bool]]] = {
    "translate_text": _TRANSLATION_FEATURES,
    "translate_document": _TRANSLATION_FEATURES,
    "glossary": {},
}
"""Resources of DeepL that this server has, with their features."""


class DeeplLanguage(AnswerBody):
    language: str
    name: str
    supports_formality: bool | None = None


class DeeplLanguagesAnswer(RootModel[list[DeeplLanguage]]):
    """The source languages, or the target languages if the query has `type` target."""


class DeeplFeature(AnswerBody):
    status: str


class DeeplLanguageFeatures(AnswerBody):
    """A language of a resource. `lang`: code of BCP 47.

    `features`: the features that the language supports, by name.
    """

    lang: str
    name: str
    usable_as_source: bool
    usable_as_target: bool
    status: str
    features: dict[str, DeeplFeature]


class DeeplLanguageFeaturesAnswer(RootModel[list[DeeplLanguageFeatures]]):
    """The answer of `GET /v3/languages`: every language of a resource."""


class DeeplResourceFeature(AnswerBody):
    """A feature of a resource, and which language of a pair has to support it."""

    name: str
    needs_source_support: bool | None = None
    needs_target_support: bool | None = None


class DeeplResource(AnswerBody):
    name: str
    features: list[DeeplResourceFeature]


class DeeplResourcesAnswer(RootModel[list[DeeplResource]]):
    """The answer of `GET /v3/languages/resources`: the resources that `/v3/languages` describes."""


def _sources(offered: Sequence[OfferedLanguage]) -> dict[str, str]:
    """Codes and names of the source languages, without regions and scripts, as DeepL lists them."""
    codes = dict.fromkeys(source.code.partition("-")[0] for source in offered if source.targets)
    return {code: language_label(code) for code in codes}


def _targets(offered: Sequence[OfferedLanguage]) -> dict[str, str]:
    """Codes and names of the target languages, with the regions and scripts that DeepL lists."""
    codes = sorted({target for source in offered for target in source.targets})
    if "pt-BR" in codes:
        codes.remove("pt-BR")
        codes = sorted({*codes, "pt"})
    if "zh-Hant" in codes and "zh" in codes:
        codes.insert(codes.index("zh") + 1, "zh-Hans")
    return dict(pair for code in codes for pair in _REGIONAL_TARGETS.get(code, ((code, language_label(code)),)))


async def _offered(state: State) -> tuple[Sequence[OfferedLanguage], bool]:
    """The languages that the models translate, and whether a model's translation prompt has a place for `formality`."""
    models = await state.runtime.translations()
    prompts = [languages.instruction for languages in models if languages.instruction is not None]
    return offered_languages(models, state.runtime.pivot), any(prompt.with_formality for prompt in prompts)


async def _languages(state: State, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    kind = parameters.get("type", "source")
    if kind not in ("source", "target"):
        raise InvalidRequest("`type` must be source or target", "type")
    offered, has_formality = await _offered(state)
    if kind == "source":
        return [{"language": code.upper(), "name": name} for code, name in _sources(offered).items()]
    return [
        {"language": code.upper(), "name": name, "supports_formality": has_formality}
        for code, name in _targets(offered).items()
    ]


async def _language_features(state: State, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    """The answer of `GET /v3/languages`: each language of a resource, with the features that it supports.

    All languages are stable. The parameter `include`, which asks for other languages, therefore adds none.
    Raises InvalidRequest for an unknown resource.
    """
    resource = parameters.get("resource", "")
    if resource not in _RESOURCES:
        raise InvalidRequest(f"`resource` must be {', '.join(_RESOURCES)}", "resource")
    offered, has_formality = await _offered(state)
    sources, targets = _sources(offered), _targets(offered)
    if resource == "glossary":  # glossaries have no regions or scripts
        targets = {code: language_label(code) for code in dict.fromkeys(code.partition("-")[0] for code in targets)}
    found = []
    for code, name in sorted({**targets, **sources}.items()):
        supported = {
            feature
            for feature, needs in _RESOURCES[resource].items()
            if (code in sources and "needs_source_support" in needs)
            or (code in targets and "needs_target_support" in needs)
        } - (set() if has_formality else {"formality"})
        found.append(
            {
                "lang": code,
                "name": name,
                "usable_as_source": code in sources,
                "usable_as_target": code in targets,
                "status": "stable",
                "features": {feature: {"status": "stable"} for feature in sorted(supported)},
            }
        )
    return found


def _resources(state: State, parameters: Mapping[str, str]) -> list[dict[str, Any]]:
    return [
        {"name": resource, "features": [{"name": feature, **needs} for feature, needs in features.items()]}
        for resource, features in _RESOURCES.items()
    ]


GET_ROUTES: tuple[GetRoute, ...] = (
    GetRoute(
        path="/v2/languages",
        name="deepl_languages",
        description="The languages that the loaded models translate from, or to.",
        answer=DeeplLanguagesAnswer,
        example=[{"language": "EN", "name": "English"}],
        render=_languages,
        errors=ERRORS,
        parameters={"type": "source (default) or target"},
        takes_post=True,
    ),
    GetRoute(
        path="/v3/languages",
        name="deepl_language_features",
        description="The languages of a resource, with the features that each of them supports.",
        answer=DeeplLanguageFeaturesAnswer,
        example=[
            {
                "lang": "en",
                "name": "English",
                "usable_as_source": True,
                "usable_as_target": False,
                "status": "stable",
                "features": {"glossary": {"status": "stable"}},
            }
        ],
        render=_language_features,
        errors=ERRORS,
        parameters={
            "resource": "translate_text, translate_document or glossary",
            "include": "beta or external; this server has no such languages",
        },
    ),
    GetRoute(
        path="/v3/languages/resources",
        name="deepl_language_resources",
        description="The resources that `/v3/languages` describes, with their features.",
        answer=DeeplResourcesAnswer,
        example=[{"name": "translate_text", "features": [{"name": "formality", "needs_target_support": True}]}],
        render=_resources,
        errors=ERRORS,
    ),
)
