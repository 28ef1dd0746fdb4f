"""Bilingual noun phrases and complements: determiners, adjectives, possession, places and times."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from weights.demo.train.grammar import english, french, words
from weights.demo.train.grammar.words import Adjective, Noun

PEOPLE = ("person", "job")
_POSSESSORS = [
    ("my", ("mon", "ma", "mes")), ("your", ("votre", "votre", "vos")), ("his", ("son", "sa", "ses")),
    ("her", ("son", "sa", "ses")), ("our", ("notre", "notre", "nos")), ("their", ("leur", "leur", "leurs")),
]  # fmt: skip


@dataclass(frozen=True)
class Phrase:
    """A noun phrase or pronoun in both languages, with the person, gender and number that verbs agree with."""

    en: str
    fr: tuple[str, ...]
    person: int
    feminine: bool = False
    plural: bool = False
    indefinite: bool = False
    kind: str = ""

    @property
    def english_be(self) -> str:
        """The form of "be" with this phrase as the subject: "am", "is" or "are"."""
        return "am" if self.person == french.JE else "is" if self.person == french.IL else "are"

    @property
    def third_singular(self) -> bool:
        """Whether an English verb ends in "-s" if this phrase is its subject."""
        return self.person == french.IL

    @property
    def nominal(self) -> bool:
        """Whether the phrase is a noun or a name, which a pronoun can replace later."""
        return self.kind != "pronoun"


# English you has no polite form, and pronouns no gender. Here you is always vous, said to one man; I, we and they
# are masculine.
PRONOUNS = [
    Phrase("I", ("je",), french.JE, kind="pronoun"),
    Phrase("you", ("vous",), french.VOUS, kind="pronoun"),
    Phrase("he", ("il",), french.IL, kind="pronoun"),
    Phrase("she", ("elle",), french.IL, feminine=True, kind="pronoun"),
    Phrase("we", ("nous",), french.NOUS, plural=True, kind="pronoun"),
    Phrase("they", ("ils",), french.ILS, plural=True, kind="pronoun"),
]


def pronoun_for(phrase: Phrase) -> Phrase:
    """The subject pronoun that replaces a phrase; for "the girls" it is "they", "elles". A pronoun stays as it is."""
    if not phrase.nominal:
        return phrase
    if phrase.plural:
        they = "elles" if phrase.feminine else "ils"
        return Phrase("they", (they,), french.ILS, phrase.feminine, True, kind="pronoun")
    return PRONOUNS[3] if phrase.feminine else PRONOUNS[2]


def _determiner(rng: Random, noun: Noun, plural: bool, allowed: str) -> tuple[str, str]:
    """A random English and French determiner of one of the kinds in `allowed`, else "the".

    The English "a" becomes "an" later, when the next word is known.
    """
    mass = noun.kind in ("stuff", "drink")
    choice = rng.choices(("the", "a", "own", "this", "number"), (40, 26, 20, 8, 6))[0]
    if choice not in allowed.split():
        choice = "the"
    number = 2 if plural else 1 if noun.feminine else 0
    vowel = french.vowel_start(noun.fr)
    if choice == "number" and not mass:
        if plural:
            return rng.choice(words.NUMBERS)
        choice = "the"
    if choice == "own":
        en, forms = rng.choice(_POSSESSORS)
        return en, forms[number]
    if choice == "this" and not mass:
        if plural:
            return rng.choice([("these", "ces"), ("those", "ces")])
        return rng.choice(["this", "that"]), "cette" if noun.feminine else "cet" if vowel else "ce"
    if choice == "a":
        if mass:
            return "some", "de la" if noun.feminine else "MASS"
        return ("some", "des") if plural else ("a", "une" if noun.feminine else "un")
    return "the", ("le", "la", "les")[number]


def describe(noun: Noun, adjective: Adjective | None, plural: bool, det: tuple[str, str]) -> Phrase:
    """Make a noun phrase from determiner, adjective and noun, with French agreement and liaison.

    det: determiner in English and French.
    """
    en_det, fr_det = det
    en, fr = noun.forms(plural)
    before = after = ""
    if adjective:
        form = french.adjective(adjective.fr, noun.feminine, plural)
        if adjective.before:
            before = form if noun.feminine or plural else french.liaison(form, fr)
        else:
            after = form
        en = f"{adjective.en} {en}"
    follows = before or fr
    if french.vowel_start(follows):
        fr_det = {"ma": "mon", "sa": "son", "ce": "cet", "MASS": "de le", "de la": "de la"}.get(fr_det, fr_det)
    else:
        feminine_start = noun.feminine and not plural
        fr_det = {"MASS": "du", "cet": "ce"}.get(fr_det, fr_det)
        fr_det = {"mon": "ma", "son": "sa"}.get(fr_det, fr_det) if feminine_start else fr_det
    if fr_det == "des" and before:
        fr_det = "de"
    if en_det == "a":
        en_det = english.article(en)
    fr_words = tuple(word for word in (*fr_det.split(), before, fr, after) if word)
    person = french.ILS if plural else french.IL
    return Phrase(f"{en_det} {en}", fr_words, person, noun.feminine, plural, en_det in ("a", "an", "some"), noun.kind)


def noun_phrase(
    rng: Random, kinds: tuple[str, ...], allowed: str = "the a own this number", simple: bool = False
) -> Phrase:
    """A random noun phrase.

    kinds: kinds of nouns to draw from. allowed: kinds of determiners, separated by spaces.
    simple: whether the phrase must have no possessor, such as "the doctor's".
    """
    kind = rng.choice(kinds)
    if kind in PEOPLE and rng.random() < 0.22:
        return name(rng)
    noun = rng.choice(words.BY_KIND[kind])
    plural = kind not in ("stuff", "drink") and rng.random() < 0.28
    adjective = None
    if words.ADJECTIVES_FOR[kind] and rng.random() < 0.32:
        adjective = rng.choice(words.ADJECTIVES_FOR[kind])
    if not simple and not adjective and rng.random() < 0.12:
        return _owned(rng, noun, plural)
    return describe(noun, adjective, plural, _determiner(rng, noun, plural, allowed))


def _owned(rng: Random, noun: Noun, plural: bool) -> Phrase:
    """A noun phrase with a random possessor: "the doctor's car", "la voiture du médecin"."""
    owner = noun_phrase(rng, PEOPLE, "the own", simple=True)
    en, fr = noun.forms(plural)
    article = "les" if plural else "la" if noun.feminine else "le"
    apostrophe = "'" if owner.en.endswith("s") and owner.plural else "'s"
    fr_words = (article, fr, *french.contract("de", owner.fr))
    person = french.ILS if plural else french.IL
    return Phrase(f"{owner.en}{apostrophe} {en}", fr_words, person, noun.feminine, plural, False, noun.kind)


def name(rng: Random) -> Phrase:
    """A random first name."""
    if rng.random() < 0.5:
        chosen = rng.choice(words.MALE)
        return Phrase(chosen, (chosen,), french.IL, kind="person")
    chosen = rng.choice(words.FEMALE)
    return Phrase(chosen, (chosen,), french.IL, feminine=True, kind="person")


def both(first: Phrase, second: Phrase) -> Phrase:
    """Two people joined by "and". The phrase is masculine if one of them is masculine."""
    feminine = first.feminine and second.feminine
    return Phrase(
        f"{first.en} and {second.en}", (*first.fr, "et", *second.fr), french.ILS, feminine, True, kind="person"
    )


def with_preposition(en: str, fr: str, phrase: Phrase) -> tuple[str, list[str]]:
    """A preposition before a noun phrase, as English text and French words. "à le" becomes "au", "de le" "du"."""
    joined = french.contract(fr, phrase.fr) if fr.split()[-1] in ("à", "de") else [fr, *phrase.fr]
    return f"{en} {phrase.en}", joined


def place(rng: Random) -> tuple[str, list[str]]:
    """A random place where something happens, as English text and French words."""
    draw = rng.random()
    if draw < 0.15:
        en, fr = rng.choice(words.CITIES)
        return f"in {en}", ["à", fr]
    if draw < 0.25:
        en, fr = rng.choice(words.COUNTRIES)
        return f"in {en}", [fr]
    if draw < 0.32:
        return "at home", ["à la maison"]
    if draw < 0.5:
        return with_preposition("at", "à", noun_phrase(rng, ("place",), "the", simple=True))
    kind = rng.choices(("place", "furniture", "nature"), (60, 22, 18))[0]
    en, fr = rng.choice(words.PLACE_PREPOSITIONS[kind])
    return with_preposition(en, fr, noun_phrase(rng, (kind,), "the own", simple=True))


def destination(rng: Random) -> tuple[str, list[str]]:
    """A random destination of a movement, as English text and French words."""
    draw = rng.random()
    if draw < 0.2:
        en, fr = rng.choice(words.CITIES)
        return f"to {en}", ["à", fr]
    if draw < 0.4:
        en, fr = rng.choice(words.COUNTRIES)
        return f"to {en}", [fr]
    return with_preposition("to", "à", noun_phrase(rng, ("place",), "the", simple=True))


def company(rng: Random) -> tuple[str, list[str]]:
    """A random phrase "with", "without" or "for" someone, as English text and French words."""
    en, fr = rng.choice([("with", "avec"), ("with", "avec"), ("for", "pour"), ("without", "sans")])
    return with_preposition(en, fr, noun_phrase(rng, PEOPLE, "the own", simple=True))


def person(rng: Random) -> Phrase:
    """A random noun phrase for a person, without a possessor."""
    return noun_phrase(rng, PEOPLE, "the own", simple=True)


def subject(rng: Random) -> Phrase:
    """A random subject that can act: a pronoun, a person, two people or an animal."""
    draw = rng.random()
    if draw < 0.5:
        return rng.choice(PRONOUNS)
    if draw < 0.6:
        return both(rng.choice([name, person])(rng), name(rng))
    return noun_phrase(rng, ("person", "person", "job", "job", "animal"), "the own this number a")
