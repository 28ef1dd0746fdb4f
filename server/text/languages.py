"""Which translations a checkpoint offers, and how to ask it for one.

- Marian: the pair of `tokenizer_config.json`, else of the directory's name (`opus-mt-en-fr`); a model with several
  target languages has a token for each, `>>fra<<`, which goes before the source text.
- T5 and others: the prefixes that `config.json` names (`task_specific_params`, `translation_en_to_fr`); a T5 that names
  none is asked in words, `translate English to French: ` (Raffel et al. 2020, arXiv:1910.10683, appendix D).
- BART without such prefixes offers none.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from server.text.language_codes import Language, english_name, is_collective, parse_language
from server.text.tokenizer import Tokenizer
from server.text.tokenizer_files import read_json

_LISTED = 30
_OPUS_NAME = re.compile(r"opus-mt-(?:tc-(?:[a-z]+-)*?(?:base|big|tiny)-|tc-)?([\w+]+)-([\w+]+)$")
_TASK = re.compile(r"translation_(\w+)_to_(\w+)")


class UnknownPair(ValueError):
    """The checkpoint does not offer this translation. The message lists what it offers."""


@dataclass(frozen=True)
class Plan:
    """How to ask for one translation.

    prefix: text before the source text. leading_source_ids: token ids before those of the source text.
    forced_bos_id: the answer's first token, where the checkpoint chooses the target language so.
    source_lang, target_lang: in the checkpoint's own words; None for a source that it does not tell apart.
    """

    prefix: str = ""
    leading_source_ids: tuple[int, ...] = ()
    forced_bos_id: int | None = None
    source_lang: str | None = None
    target_lang: str | None = None


@dataclass(frozen=True)
class _Offer:
    """One translation. A source of None is a group of languages that the checkpoint does not tell apart."""

    source: Language | None
    target: Language
    plan: Plan


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
        offers = _task_offers(read_json(directory, "config.json"))
        return cls(offers, in_words=family == "t5" and not offers)

    def pairs(self) -> list[tuple[str, str]]:
        """(source, target) of everything on offer, in the checkpoint's own words; `mul` for any source."""
        return [(offer.plan.source_lang or "mul", offer.plan.target_lang or "") for offer in self._offers]

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
        scored = [(_score(offer, wanted_source, wanted_target), offer) for offer in self._offers]
        best = max((score for score, _ in scored), default=0)
        found = [offer for score, offer in scored if score == best and best > 0]
        if not found:
            raise UnknownPair(f"no such translation; {self._listing()}")
        ambiguous = {
            name
            for name, languages in (
                ("source_lang", {offer.source for offer in found} if wanted_source is None else set()),
                ("target_lang", {offer.target for offer in found} if wanted_target is None else set()),
            )
            if len(languages) > 1
        }
        if ambiguous:
            raise UnknownPair(f"{' and '.join(sorted(ambiguous))} must be given; {self._listing()}")
        return found[0].plan

    def _listing(self) -> str:
        if not self._offers:
            return "this model offers any two languages by name" if self._in_words else "this model offers none"
        pairs = [f"{source}-{target}" for source, target in self.pairs()]
        more = [f"and {len(pairs) - _LISTED} more"] if len(pairs) > _LISTED else []
        return "this model offers " + ", ".join(pairs[:_LISTED] + more)


def _score(offer: _Offer, source: Language | None, target: Language | None) -> int:
    """How well an offer answers: 0 not at all. A language left out fits everything equally."""
    from_source = 1 if source is None or offer.source is None else source.fits(offer.source)
    to_target = 1 if target is None else target.fits(offer.target)
    return from_source * 16 + to_target if from_source and to_target else 0


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
            offers.append(_Offer(source, target, Plan(prefix, source_lang=match[1], target_lang=match[2])))
    return offers


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
        _Offer(source, target, Plan("", leading, None, source_name, target_name))
        for source_name, source in _sources(sources)
        for target_name, target, leading in _targets(targets, tokenizer)
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
