"""Which translations a checkpoint offers, and how to ask it for one.

- Marian: the pair of `tokenizer_config.json`, else of the directory's name (`opus-mt-en-fr`); a model with several
  target languages has a token for each, `>>fra<<`, which goes before the source text.
- T5 and others: the prefixes that `config.json` names (`task_specific_params`, `translation_en_to_fr`); a T5 that names
  none is asked in words, `translate English to French: ` (Raffel et al. 2020, arXiv:1910.10683, appendix D).
- mBART, mBART-50, NLLB and M2M100: each language that has a token, to each other (`fairseq`).
- BART without such prefixes offers none.
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

_LISTED = 30
_OPUS_NAME = re.compile(r"opus-mt-(?:tc-(?:[a-z]+-)*?(?:base|big|tiny)-|tc-)?([\w+]+)-([\w+]+)$")
_TASK = re.compile(r"translation_(\w+)_to_(\w+)")


class UnknownPair(ValueError):
    """The checkpoint does not offer this translation. The message lists what it offers."""


@dataclass(frozen=True)
class Plan:
    """How to ask for one translation.

    prefix: text before the source text. leading_source_ids: token ids before those of the source text.
    trailing_source_ids: token ids after them; None where the tokenizer's own special tokens go around the text instead.
    forced_bos_id: the answer's first token, where the checkpoint chooses the target language so.
    decoder_start_ids: what the decoder starts from, where it chooses so; None for the checkpoint's own.
    source_lang, target_lang: in the checkpoint's own words; None for a source that it does not tell apart.
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
    """A language to translate from, and what asks for it; None and None for a group that is not told apart."""

    name: str | None
    language: Language | None
    prefix: str = ""
    leading: tuple[int, ...] = ()
    trailing: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Target:
    """A language to translate to, and what asks for it."""

    name: str
    language: Language
    leading: tuple[int, ...] = ()
    forced_bos_id: int | None = None
    decoder_start_ids: tuple[int, ...] | None = None


@dataclass(frozen=True)
class _Offer:
    """Translations from each of some languages to each of some, except to itself."""

    sources: tuple[_Source, ...]
    targets: tuple[_Target, ...]

    @property
    def is_all_to_all(self) -> bool:
        return len(self.targets) > 1 and [one.name for one in self.sources] == [one.name for one in self.targets]

    def pairs(self) -> list[tuple[str, str]]:
        if self.is_all_to_all:
            names = [target.name for target in self.targets]
            return [*((name, "mul") for name in names), *(("mul", name) for name in names)]
        return [(source.name or "mul", target.name) for source in self.sources for target in self.targets]


class TranslationLanguages:
    """What one checkpoint translates. `in_words`: any two languages may be asked for by their names."""

    def __init__(self, offers: Iterable[_Offer], in_words: bool = False) -> None:
        self._offers = tuple(offers)
        self._in_words = in_words

    @classmethod
    def from_checkpoint(cls, directory: Path, family: str, tokenizer: Tokenizer) -> TranslationLanguages:
        """Read a checkpoint's languages. family: its name (`marian`, `t5`, `bart`)."""
        if family in ("marian", "triptych"):
            return cls(_marian_offers(directory, tokenizer))
        config = read_json(directory, "config.json")
        if family in ("mbart", "m2m_100"):
            return cls(_fairseq_offers(directory, config, tokenizer))
        offers = _task_offers(config)
        return cls(offers, in_words=family == "t5" and not offers)

    def pairs(self) -> list[tuple[str, str]]:
        """(source, target) of everything on offer, in the checkpoint's own words; `mul` for any source.

        Of a checkpoint that translates from each of its languages to each: (language, `mul`) and (`mul`, language).
        """
        return [pair for offer in self._offers for pair in offer.pairs()]

    def match(self, source: str | None, target: str | None) -> Plan:
        """The plan for a pair of codes of any kind; a code that is left out matches what there is only one of.

        Raises UnknownPair, also for what is no language code.
        """
        wanted = [None if code is None else parse_language(code) for code in (source, target)]
        for name, code, language in zip(("source_lang", "target_lang"), (source, target), wanted, strict=True):
            if code is not None and language is None:
                raise UnknownPair(f"{name} is not a language code; {self._listing()}")
        wanted_source, wanted_target = wanted
        if self._in_words:
            return _in_words(wanted_source, wanted_target)
        scored = [_closest(offer, wanted_source, wanted_target) for offer in self._offers]
        best = max((score for score, _ in scored), default=0)
        found = [offer for score, offer in scored if score == best and best > 0]
        ambiguous = {
            name
            for name, languages in (
                ("source_lang", {one.language for offer in found for one in offer.sources}),
                ("target_lang", {one.language for offer in found for one in offer.targets}),
            )
            if {"source_lang": wanted_source, "target_lang": wanted_target}[name] is None and len(languages) > 1
        }
        if ambiguous:
            raise UnknownPair(f"{' and '.join(sorted(ambiguous))} must be given; {self._listing()}")
        plans = (_plan(one, other) for offer in found for one in offer.sources for other in offer.targets)
        plan = next((plan for plan in plans if plan.source_lang != plan.target_lang), None)
        if plan is None:
            raise UnknownPair(f"no such translation; {self._listing()}")
        return plan

    def _listing(self) -> str:
        if not self._offers:
            return "this model offers any two languages by name" if self._in_words else "this model offers none"
        every = [offer for offer in self._offers if offer.is_all_to_all]
        if every:
            return f"this model offers any two of {_first_few([target.name for target in every[0].targets])}"
        return "this model offers " + _first_few([f"{source}-{target}" for source, target in self.pairs()])


def _first_few(names: list[str]) -> str:
    more = [f"and {len(names) - _LISTED} more"] if len(names) > _LISTED else []
    return ", ".join(names[:_LISTED] + more)


def _closest(offer: _Offer, source: Language | None, target: Language | None) -> tuple[int, _Offer]:
    """How well an offer answers, 0 not at all, and what of it does so best. A language left out fits all equally."""
    sources = [1 if source is None or one.language is None else source.fits(one.language) for one in offer.sources]
    targets = [1 if target is None else target.fits(one.language) for one in offer.targets]
    from_source, to_target = max(sources, default=0), max(targets, default=0)
    closest = _Offer(
        tuple(one for one, score in zip(offer.sources, sources, strict=True) if score == from_source),
        tuple(one for one, score in zip(offer.targets, targets, strict=True) if score == to_target),
    )
    return (from_source * 16 + to_target if from_source and to_target else 0), closest


def _plan(source: _Source, target: _Target) -> Plan:
    return Plan(
        prefix=source.prefix,
        leading_source_ids=(*target.leading, *source.leading),
        trailing_source_ids=source.trailing,
        forced_bos_id=target.forced_bos_id,
        decoder_start_ids=target.decoder_start_ids,
        source_lang=source.name,
        target_lang=target.name,
    )


def _in_words(source: Language | None, target: Language | None) -> Plan:
    names = [language and english_name(language) for language in (source, target)]
    if not all(names):
        raise UnknownPair("source_lang and target_lang must both be given, as languages with a two-letter code")
    return Plan(f"translate {names[0]} to {names[1]}: ", source_lang=str(source), target_lang=str(target))


def _task_offers(config: Mapping[str, Any]) -> list[_Offer]:
    """Offers of `task_specific_params`; entries that are no translation, or have no prefix, are not offers."""
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
    """Every language to every other. mBART's decoder starts from the target language, the others' first new token is
    it; a checkpoint that names such a token itself translates to that language only."""
    tokens, end = language_tokens(tokenizer, read_tokenizer_files(directory)), tokenizer.special.eos
    if tokens is None or end is None:
        return []
    languages = {code: language for code in tokens.ids if (language := parse_language(code)) is not None}
    sources = []
    for code, language in languages.items():
        leading, trailing = tokens.around(code, end)
        sources.append(_Source(code, language, "", leading, trailing))
    starts = tokens.kind == "mbart"
    name = "decoder_start_token_id" if starts else "forced_bos_token_id"
    generation = read_json(directory, "generation_config.json")
    chosen = config.get(name) if generation.get(name) is None else generation[name]
    targets = []
    for code, language in languages.items():
        token_id = tokens.ids[code]
        if chosen == token_id or chosen not in tokens.ids.values():
            start = (token_id,) if starts else None
            targets.append(_Target(code, language, (), None if starts else token_id, start))
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
    """The pair in the name of the directory, or in that of the hub repository whose snapshot it is."""
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
    """(name, language, tokens before the source text) of each target: those with a token, else the stated one."""
    tokens = ((tokenizer.id_to_token(token_id) or "", token_id) for token_id in range(tokenizer.vocab_size))
    chosen: list[tuple[str, Language, tuple[int, ...]]] = []
    for token, token_id in tokens:
        if token.startswith(">>") and token.endswith("<<"):
            language = parse_language(token[2:-2])
            if language is not None:
                chosen.append((token[2:-2], language, (token_id,)))
    if chosen:
        return chosen
    languages = ((code, parse_language(code)) for code in _codes(stated))
    return [(code, language, ()) for code, language in languages if language is not None and not is_collective(code)]


def _codes(stated: str) -> list[str]:
    """One code, or several joined by `+` or, where that is no code itself, by `_`."""
    if parse_language(stated) is not None or is_collective(stated):
        return [stated]
    return re.split(r"[+_]", stated)
