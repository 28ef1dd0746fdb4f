"""Translations that a checkpoint offers, and the prompt for each of them.

- Marian: the language pair in `tokenizer_config.json`, else in the name of the directory (`opus-mt-en-fr`). A model
  with several target languages has a token for each (`>>fra<<`), which precedes the source text.
- T5 and others: the prefixes in `config.json` (`task_specific_params`, `translation_en_to_fr`). A T5 without them takes
  languages by name: `translate English to French: ` (Raffel et al. 2020, arXiv:1910.10683, appendix D).
- mBART, mBART-50, NLLB and M2M100: from each language with a token to each other one (`fairseq`).
- BART without prefixes: none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.text.fairseq import language_tokens
from server.text.language_codes import Language, english_name, is_collective, parse_language
from server.text.tokenizer import Tokenizer
from server.text.tokenizer_files import read_json, read_tokenizer_files

_MAX_LISTED = 30
_OPUS_NAME = re.compile(r"opus-mt-(?:tc-(?:[a-z]+-)*?(?:base|big|tiny)-|tc-)?([\w+]+)-([\w+]+)$")
_TASK = re.compile(r"translation_(\w+)_to_(\w+)")


class UnknownPair(ValueError):
    """The checkpoint does not offer this translation. The message lists the translations it offers."""


@dataclass(frozen=True)
class TranslationPrompt:
    """The prompt for one translation.

    prefix: text before the source text.
    leading_source_ids: token ids before the source text.
    trailing_source_ids: token ids after the source text. None where the tokenizer adds its own special tokens instead.
    forced_bos_id: first token of the translation, for checkpoints that choose the target language with it.
    decoder_start_ids: decoder prompt, for checkpoints that choose the target language with it; else None.
    source_lang, target_lang: the checkpoint's language codes. source_lang is None where the model takes a group of
        languages without distinguishing them.
    """

    prefix: str = ""
    leading_source_ids: tuple[int, ...] = ()
    trailing_source_ids: tuple[int, ...] | None = None
    forced_bos_id: int | None = None
    decoder_start_ids: tuple[int, ...] | None = None
    source_lang: str | None = None
    target_lang: str | None = None


@dataclass(frozen=True)
class _Source:
    """A source language and its part of the prompt. name and language are None for a group of languages."""

    name: str | None
    language: Language | None
    prefix: str = ""
    leading: tuple[int, ...] = ()
    trailing: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Target:
    """A target language and its part of the prompt."""

    name: str
    language: Language
    leading: tuple[int, ...] = ()
    forced_bos_id: int | None = None
    decoder_start_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Offer:
    """Translations from each source to each target language, except to itself."""

    sources: tuple[_Source, ...]
    targets: tuple[_Target, ...]

    @property
    def is_all_to_all(self) -> bool:
        """Whether the model translates between any two of its languages: sources and targets are the same list."""
        return len(self.targets) > 1 and [one.name for one in self.sources] == [one.name for one in self.targets]

    def pairs(self) -> list[tuple[str, str]]:
        if self.is_all_to_all:
            names = [target.name for target in self.targets]
            return [*((name, "mul") for name in names), *(("mul", name) for name in names)]
        return [(source.name or "mul", target.name) for source in self.sources for target in self.targets]


class TranslationLanguages:
    """The translations of one checkpoint.

    offers: the translations with their prompts.
    by_name: whether the model translates between any two languages, which the prompt names in English.
    """

    def __init__(self, offers: Iterable[_Offer], by_name: bool = False) -> None:
        self._offers = tuple(offers)
        self._by_name = by_name

    @classmethod
    def from_checkpoint(cls, directory: Path, family: str, tokenizer: Tokenizer) -> TranslationLanguages:
        """Read the languages of a checkpoint. family: value of `model_type` (`marian`, `t5`, `bart`)."""
        if family in ("marian", "triptych"):
            return cls(_marian_offers(directory, tokenizer))
        config = read_json(directory, "config.json")
        if family in ("mbart", "m2m_100"):
            return cls(_fairseq_offers(directory, config, tokenizer))
        offers = _task_offers(config)
        return cls(offers, by_name=family == "t5" and not offers)

    def pairs(self) -> list[tuple[str, str]]:
        """(source, target) codes of all translations, in the checkpoint's codes; `mul` for a group of sources.

        A checkpoint that translates between all its languages has (language, `mul`) and (`mul`, language) for each.
        """
        return [pair for offer in self._offers for pair in offer.pairs()]

    def match(self, source: str | None, target: str | None) -> TranslationPrompt:
        """The prompt for a pair of language codes in any notation.

        source, target: a code, or None where the checkpoint offers only one language.
        Raises UnknownPair for a pair that is not offered, is ambiguous, or contains an invalid code.
        """
        requested = [None if code is None else parse_language(code) for code in (source, target)]
        for name, code, language in zip(("source_lang", "target_lang"), (source, target), requested, strict=True):
            if code is not None and language is None:
                hint = "use a code such as de or deu_Latn" if self._by_name else self._listing()
                raise UnknownPair(f"{name} is not a language code: {hint}")
        source_language, target_language = requested
        if self._by_name:
            return _prompt_by_name(source_language, target_language)
        scored = [_closest(offer, source_language, target_language) for offer in self._offers]
        best = max((score for score, _ in scored), default=0)
        found = [offer for score, offer in scored if score == best and best > 0]
        missing = []
        if source_language is None and len({one.language for offer in found for one in offer.sources}) > 1:
            missing.append("source_lang")
        if target_language is None and len({one.language for offer in found for one in offer.targets}) > 1:
            missing.append("target_lang")
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            raise UnknownPair(f"{' and '.join(missing)} {verb} required: {self._listing()}")
        prompts = (_prompt(one, other) for offer in found for one in offer.sources for other in offer.targets)
        prompt = next((prompt for prompt in prompts if prompt.source_lang != prompt.target_lang), None)
        if prompt is None:
            raise UnknownPair(f"this translation is not offered: {self._listing()}")
        return prompt

    def _listing(self) -> str:
        if not self._offers:
            return "this model has no list of languages"
        offer = next((offer for offer in self._offers if offer.is_all_to_all), None)
        if offer is not None:
            return f"this model translates between {_first_few([target.name for target in offer.targets])}"
        return "this model translates " + _first_few([f"{source}-{target}" for source, target in self.pairs()])


def _first_few(names: list[str]) -> str:
    more = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    return ", ".join(names[:_MAX_LISTED] + more)


def _closest(offer: _Offer, source: Language | None, target: Language | None) -> tuple[int, _Offer]:
    """Score of an offer, 0 for no match, and the offer reduced to its best languages. None matches any language."""
    sources = [1 if source is None or one.language is None else source.fits(one.language) for one in offer.sources]
    targets = [1 if target is None else target.fits(one.language) for one in offer.targets]
    from_source, to_target = max(sources, default=0), max(targets, default=0)
    closest = _Offer(
        tuple(one for one, score in zip(offer.sources, sources, strict=True) if score == from_source),
        tuple(one for one, score in zip(offer.targets, targets, strict=True) if score == to_target),
    )
    return (from_source * 16 + to_target if from_source and to_target else 0), closest


def _prompt(source: _Source, target: _Target) -> TranslationPrompt:
    return TranslationPrompt(
        prefix=source.prefix,
        leading_source_ids=(*target.leading, *source.leading),
        trailing_source_ids=source.trailing,
        forced_bos_id=target.forced_bos_id,
        decoder_start_ids=target.decoder_start_ids,
        source_lang=source.name,
        target_lang=target.name,
    )


def _prompt_by_name(source: Language | None, target: Language | None) -> TranslationPrompt:
    names = [language and english_name(language) for language in (source, target)]
    if not all(names):
        raise UnknownPair("source_lang and target_lang are required, both as languages with a two-letter code")
    prefix = f"translate {names[0]} to {names[1]}: "
    return TranslationPrompt(prefix, source_lang=str(source), target_lang=str(target))


def _task_offers(config: Mapping[str, Any]) -> list[_Offer]:
    """The translations in `task_specific_params` that have a prefix."""
    tasks = config.get("task_specific_params")
    offers = []
    for task, settings in tasks.items() if isinstance(tasks, dict) else ():
        match = _TASK.fullmatch(task)
        prefix = settings.get("prefix") if isinstance(settings, dict) else None
        if match is None or not isinstance(prefix, str):
            continue
        source, target = parse_language(match[1]), parse_language(match[2])
        if source and target:
            offers.append(_Offer((_Source(match[1], source, prefix),), (_Target(match[2], target),)))
    return offers


def _fairseq_offers(directory: Path, config: Mapping[str, Any], tokenizer: Tokenizer) -> list[_Offer]:
    """Translations from every language to every other.

    The decoder prompt of mBART is the target language's token; for the other families it is the first new token. A
    checkpoint whose configuration sets this token translates to that language only.
    """
    tokens, end = language_tokens(tokenizer, read_tokenizer_files(directory)), tokenizer.special.eos
    if tokens is None or end is None:
        return []
    languages = {code: language for code in tokens.ids if (language := parse_language(code)) is not None}
    sources = []
    for code, language in languages.items():
        leading, trailing = tokens.around(code, end)
        sources.append(_Source(code, language, "", leading, trailing))
    is_decoder_start = tokens.kind == "mbart"
    name = "decoder_start_token_id" if is_decoder_start else "forced_bos_token_id"
    generation = read_json(directory, "generation_config.json")
    configured = config.get(name) if generation.get(name) is None else generation[name]
    targets = []
    for code, language in languages.items():
        token_id = tokens.ids[code]
        if configured == token_id or configured not in tokens.ids.values():
            if is_decoder_start:
                targets.append(_Target(code, language, decoder_start_ids=(token_id,)))
            else:
                targets.append(_Target(code, language, forced_bos_id=token_id))
    return [_Offer(tuple(sources), tuple(targets))]


def _marian_offers(directory: Path, tokenizer: Tokenizer) -> list[_Offer]:
    tokenizer_config = read_json(directory, "tokenizer_config.json")
    stated = [tokenizer_config.get(f"{side}_lang") for side in ("source", "target")]
    if not all(isinstance(code, str) and code for code in stated):
        named = _opus_name(directory)
        if named is None:
            return []
        stated = [mine if isinstance(mine, str) and mine else other for mine, other in zip(stated, named, strict=True)]
    sources, targets = (str(code) for code in stated)
    return [
        _Offer(
            tuple(_Source(name, language) for name, language in _sources(sources)),
            tuple(_Target(name, language, leading) for name, language, leading in _targets(targets, tokenizer)),
        )
    ]


def _opus_name(directory: Path) -> tuple[str, str] | None:
    """Language pair in the name of the directory, or of its repository if it is a snapshot in the hub cache."""
    home = directory.resolve()
    for name in (home.name, home.parent.parent.name.rpartition("--")[2]):
        match = _OPUS_NAME.fullmatch(name)
        if match is not None:
            return match[1], match[2]
    return None


def _sources(stated: str) -> list[tuple[str | None, Language | None]]:
    found = [(code, parse_language(code)) for code in _codes(stated)]
    if any(language is None or is_collective(code) for code, language in found):
        return [(None, None)]
    return list(found)


def _targets(stated: str, tokenizer: Tokenizer) -> list[tuple[str, Language, tuple[int, ...]]]:
    """(name, language, tokens before the source text) of each target language.

    These are the languages with a token `>>code<<`. A vocabulary without such tokens gives the stated languages.
    """
    tokens = ((tokenizer.id_to_token(token_id) or "", token_id) for token_id in range(tokenizer.vocab_size))
    found: list[tuple[str, Language, tuple[int, ...]]] = []
    for token, token_id in tokens:
        if token.startswith(">>") and token.endswith("<<"):
            language = parse_language(token[2:-2])
            if language is not None:
                found.append((token[2:-2], language, (token_id,)))
    if found:
        return found
    languages = ((code, parse_language(code)) for code in _codes(stated))
    return [(code, language, ()) for code, language in languages if language is not None and not is_collective(code)]


def _codes(stated: str) -> list[str]:
    """Split codes that are joined by `+` or `_`. A code that contains `_` itself is not split."""
    if parse_language(stated) is not None or is_collective(stated):
        return [stated]
    return re.split(r"[+_]", stated)
