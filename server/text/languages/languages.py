"""Translations that a checkpoint offers, and the prompt for each of them.

- Marian: the language pair in `tokenizer_config.json`, else in the name of the directory (`opus-mt-en-fr`). A model
  with several target languages has a token for each (`>>fra<<`), which precedes the source text.
- FSMT: the language pair `langs` in `tokenizer_config.json` or `config.json`.
- T5 and others: the prefixes in `config.json` (`task_specific_params`, `translation_en_to_fr`). A T5 without them takes
  any languages, by name: `translate English to French: ` (Raffel et al. 2020, arXiv:1910.10683, appendix D).
- MADLAD, which is a T5: translations to each language that has a token such as `<2de>`, which precedes the source text.
- mBART, mBART-50, NLLB and M2M100: translations between all languages that have a token.
- BART without prefixes: no translations.
- Language models with a prompt for translation (`translation_prompts`): the languages that the prompt lists.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from server.text.languages.language_codes import Language, english_name, parse_language, plain_codes
from server.text.languages.language_offers import (
    MAX_OFFERS,
    PAIR_FAMILIES,
    LanguagesError,
    Offer,
    Source,
    Target,
    fairseq_offers,
    marian_offers,
    pair_offers,
    target_token_offers,
    task_offers,
)
from server.text.languages.translation_prompts import InstructionPrompt, published_prompt
from server.text.tokenizers.tokenizer_files import read_json
from server.text.tokens.tokenizer import Tokenizer

_MAX_LISTED = 30
_MAX_PAIRS = 1 << 17
"""Limit on the language pairs of a checkpoint, because `/languages` lists them. NLLB has 41,000."""
_EXAMPLE_LANGUAGES = ("en", "de", "fr", "es")
_ANY_BY_NAME = "this model takes languages with a two-letter code such as de"


class UnknownPair(ValueError):
    """The checkpoint offers no translation between two languages.

    problem: text that says what is wrong. listing: text that names the translations that the checkpoint offers.
    param: name of the wrong request parameter, `source_lang` or `target_lang`.
    """

    def __init__(self, problem: str, listing: str, param: str) -> None:
        super().__init__(f"{problem}: {listing}")
        self.problem, self.listing, self.param = problem, listing, param


@dataclass(frozen=True)
class TranslationPrompt:
    """The prompt for one translation.

    prefix: text before the source text.
    leading_source_ids: token ids before the source text.
    trailing_source_ids: token ids after the source text; None if the tokenizer adds its own special tokens.
    forced_bos_id: first token of the translation, if that chooses the target language; else None.
    decoder_start_ids: decoder prompt, if that chooses the target language; else None.
    task: name of the task in the checkpoint's `task_specific_params`, whose decoding settings apply; None if no such
        settings apply.
    copies: True if source and target are one language. The texts are then copied, and no model runs.
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
    task: str | None = None
    copies: bool = False


class TranslationLanguages:
    """The translations of one checkpoint.

    offers: the translations with their prompts.
    by_name: whether the model translates between any two languages, which its prompt names in English.
    instruction: the prompt for translation with a language model; None for an encoder-decoder.
    Raises LanguagesError for more than `MAX_OFFERS` offers, or too many language pairs.
    """

    def __init__(
        self, offers: Iterable[Offer], by_name: bool = False, instruction: InstructionPrompt | None = None
    ) -> None:
        self._offers = tuple(offers)
        num_pairs = sum(len(offer.sources) * len(offer.targets) for offer in self._offers)
        for count, most, what in (
            (len(self._offers), MAX_OFFERS, "lists of translations"),
            (num_pairs, _MAX_PAIRS, "pairs of languages"),
        ):
            if count > most:
                raise LanguagesError(f"the checkpoint has {count:,} or more {what}; the limit is {most:,}")
        self._by_name = by_name
        self.instruction = instruction

    @classmethod
    def from_checkpoint(
        cls,
        directory: Path,
        family: str,
        tokenizer: Tokenizer,
        stated: str = "",
        instruction: InstructionPrompt | None = None,
    ) -> TranslationLanguages:
        """Read the languages of a checkpoint.

        family: value of `model_type` (`marian`, `t5`, `bart`).
        stated: the operator's language pair (`en-de`, `en+fr-de`), for a checkpoint that may leave it out.
        instruction: the operator's prompt for a language model.
        Raises LanguagesError for a stated pair that is no pair of codes or that the family does not take, for a prompt
        with an encoder-decoder, and for too many offers.
        """
        config = read_json(directory, "config.json")
        is_encoder_decoder = config.get("is_encoder_decoder") is True
        if instruction is not None and is_encoder_decoder:
            raise LanguagesError("only a language model takes a prompt for translation; this is an encoder-decoder")
        if instruction is None and not is_encoder_decoder:
            instruction = published_prompt(directory)
        if instruction is not None:
            return cls(instruction.offers(), by_name=not instruction.languages, instruction=instruction)
        if stated and family not in PAIR_FAMILIES:
            raise LanguagesError("only a Marian checkpoint takes a language pair; others name their languages")
        if family == "fsmt":
            return cls(pair_offers(directory))
        if family in PAIR_FAMILIES:
            return cls(marian_offers(directory, tokenizer, stated))
        if family in ("mbart", "m2m_100"):
            return cls(fairseq_offers(directory, config, tokenizer))
        offers = task_offers(config)
        if family == "t5" and not offers:
            offers = target_token_offers(tokenizer)
        return cls(offers, by_name=family == "t5" and not offers)

    @property
    def known(self) -> bool:
        """Whether the checkpoint offers any translation."""
        return self._by_name or bool(self._offers)

    def sources(self, target: str | None = None) -> frozenset[str] | None:
        """Return the codes of the source languages, ISO 639-1 where one exists; None for any language.

        target: code of a language, to get only the sources with a translation into it; None for all sources.
        """
        requested = parse_language(target) if target else None
        found: set[str] = set()
        for offer in self._offers:
            targets = [fitting for fitting in offer.targets if requested is None or requested.fits(fitting.language)]
            for source in offer.sources if targets else ():
                if source.language is None:
                    return None
                if any(fitting.name != source.name for fitting in targets):
                    found.add(source.language.language)
        return None if self._by_name else frozenset(found)

    def language_pairs(self, every: Sequence[str]) -> list[tuple[str, str]]:
        """Return (source, target) of all translations, in the short codes of `plain_codes` (`de`, `pt-BR`).

        every: codes to list for a checkpoint that takes any language, or any source language.
        """
        if self._by_name:
            return [(source, target) for source in every for target in every if source != target]
        languages = [
            own_source.language
            for offer in self._offers
            for own_source in offer.sources
            if own_source.language is not None
        ]
        languages += [own_target.language for offer in self._offers for own_target in offer.targets]
        plain = plain_codes(languages)
        found: dict[tuple[str, str], None] = {}
        for offer in self._offers:
            sources = [
                code
                for own_source in offer.sources
                for code in ([plain[own_source.language]] if own_source.language else every)
            ]
            targets = [plain[own_target.language] for own_target in offer.targets]
            found |= dict.fromkeys((source, target) for source in sources for target in targets if source != target)
        return list(found)

    def example(self) -> tuple[str, str] | None:
        """Return (source, target) of one translation to show as an example; None if the checkpoint offers none.

        The source is English if the checkpoint translates from English.
        """
        pairs = self.language_pairs(_EXAMPLE_LANGUAGES)
        english = [pair for pair in pairs if pair[0] == "en"]
        preferred = [pair for pair in english if pair[1] in _EXAMPLE_LANGUAGES]
        return next(iter(preferred or english or pairs), None)

    def pairs(self) -> list[tuple[str, str]]:
        """Return (source, target) of all translations, in the checkpoint's own codes.

        `mul` stands for a group of source languages. A checkpoint that translates between all its languages gets
        (language, `mul`) and (`mul`, language) for each language, to keep the list short.
        """
        return [pair for offer in self._offers for pair in offer.pairs()]

    def match(self, source: str | None, target: str | None) -> TranslationPrompt:
        """Return the prompt for a pair of language codes, in any notation.

        source, target: language codes. None is allowed on a side for which the checkpoint offers only one language.
        If both codes mean the same language, and the checkpoint knows it, the prompt says to copy the text. Codes of
        one language with different scripts, or with regions between which the checkpoint translates, are translated.
        Raises UnknownPair for a pair that is not offered, is ambiguous, or contains an invalid code.
        """
        read, written = parse_language(source or ""), parse_language(target or "")
        copy = TranslationPrompt(source_lang=source, target_lang=target, copies=True)
        is_known = bool(read and written and read.language == written.language and self._knows(read))
        if is_known and read and written and read.equals(written):
            return copy
        try:
            return self._match(source, target)
        except UnknownPair:
            if is_known and read and written and read.has_script_of(written):
                return copy
            raise

    def _knows(self, language: Language) -> bool:
        """Whether the checkpoint reads or writes a language, in any script or region."""
        languages = [own_source.language for offer in self._offers for own_source in offer.sources]
        languages += [own_target.language for offer in self._offers for own_target in offer.targets]
        return self._by_name or any(known is not None and known.language == language.language for known in languages)

    def _match(self, source: str | None, target: str | None) -> TranslationPrompt:
        requested = [None if code is None else parse_language(code) for code in (source, target)]
        for name, code, language in zip(("source_lang", "target_lang"), (source, target), requested, strict=True):
            if code is not None and language is None:
                raise UnknownPair(f"`{name}` is not a language code", self._listing(), name)
        source_language, target_language = requested
        if self._by_name:
            return _prompt_by_name(source_language, target_language, with_prefix=self.instruction is None)
        scored = [_closest(offer, source_language, target_language) for offer in self._offers]
        best = max((score for score, _ in scored), default=0)
        found = [offer for score, offer in scored if score == best and best > 0]
        missing = []
        if (
            source_language is None
            and len({own_source.language for offer in found for own_source in offer.sources}) > 1
        ):
            missing.append("source_lang")
        if (
            target_language is None
            and len({own_target.language for offer in found for own_target in offer.targets}) > 1
        ):
            missing.append("target_lang")
        if missing:
            verb = "is" if len(missing) == 1 else "are"
            names = " and ".join([f"`{name}`" for name in missing])
            raise UnknownPair(f"{names} {verb} required", self._listing(), missing[0])
        prompts = (
            _prompt(own_source, other) for offer in found for own_source in offer.sources for other in offer.targets
        )
        prompt = next((prompt for prompt in prompts if prompt.source_lang != prompt.target_lang), None)
        if prompt is None:
            reads_source = any(_closest(offer, source_language, None)[0] for offer in self._offers)
            at_fault = "target_lang" if target_language is not None and reads_source else "source_lang"
            raise UnknownPair("this translation is not offered", self._listing(), at_fault)
        return prompt

    def _listing(self) -> str:
        if self._by_name:
            return _ANY_BY_NAME
        if not self._offers:
            return "this model has no list of languages"
        offer = next((offer for offer in self._offers if offer.is_all_to_all), None)
        if offer is not None:
            return f"this model translates between {_first_few([target.name for target in offer.targets])}"
        return "this model translates " + _first_few([f"{source}-{target}" for source, target in self.pairs()])


def _first_few(names: list[str]) -> str:
    more = [f"and {len(names) - _MAX_LISTED} more"] if len(names) > _MAX_LISTED else []
    return ", ".join(names[:_MAX_LISTED] + more)


def _closest(offer: Offer, source: Language | None, target: Language | None) -> tuple[int, Offer]:
    """Return the score of an offer for a language pair, and the offer reduced to its best matching languages.

    The score is 0 if the offer does not match the pair. A source or target of None matches all languages.
    """
    sources = [
        1 if source is None or own_source.language is None else source.fits(own_source.language)
        for own_source in offer.sources
    ]
    targets = [1 if target is None else target.fits(own_target.language) for own_target in offer.targets]
    from_source, to_target = max(sources, default=0), max(targets, default=0)
    closest = Offer(
        tuple(own_source for own_source, score in zip(offer.sources, sources, strict=True) if score == from_source),
        tuple(own_target for own_target, score in zip(offer.targets, targets, strict=True) if score == to_target),
    )
    return (from_source * 16 + to_target if from_source and to_target else 0), closest


def _prompt(source: Source, target: Target) -> TranslationPrompt:
    return TranslationPrompt(
        prefix=source.prefix,
        leading_source_ids=(*target.leading, *source.leading),
        trailing_source_ids=source.trailing,
        forced_bos_id=target.forced_bos_id,
        decoder_start_ids=target.decoder_start_ids,
        source_lang=source.name,
        target_lang=target.name,
        task=source.task,
    )


def _prompt_by_name(source: Language | None, target: Language | None, with_prefix: bool) -> TranslationPrompt:
    names = [language and english_name(language) for language in (source, target)]
    if not all(names):
        at_fault = "target_lang" if names[0] else "source_lang"
        raise UnknownPair("`source_lang` and `target_lang` are required", _ANY_BY_NAME, at_fault)
    prefix = f"translate {names[0]} to {names[1]}: " if with_prefix else ""
    return TranslationPrompt(prefix, source_lang=str(source), target_lang=str(target))
