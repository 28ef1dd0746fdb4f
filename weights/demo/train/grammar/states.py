"""Bilingual sentences about states: "to be", "to have", "there is", "where", and names."""

from __future__ import annotations

from random import Random

from weights.demo.train.grammar import french, words
from weights.demo.train.grammar.clauses import NEGATIONS, Clause, english_statement, french_statement, object_words
from weights.demo.train.grammar.phrases import PRONOUNS, Phrase, describe, name, noun_phrase, place, subject
from weights.demo.train.grammar.words import Verb

Parts = tuple[list[str], list[str]]

_BE = {
    "present": ("", french.present), "past": ("was", french.imperfect), "future": ("will be", french.future),
    "would": ("would be", french.conditional),
}  # fmt: skip


def being(rng: Random, who: Phrase) -> tuple[list[str], list[str], list[str], list[str]]:
    """A random clause with "be" and the subject `who`.

    Returns the words of the English subject, the English predicate (the verb first), the French subject and the French
    predicate.
    """
    tense = rng.choices(list(_BE), (60, 22, 12, 6))[0]
    english_be, table = _BE[tense]
    if tense == "past" and who.english_be == "are":
        english_be = "were"
    verb = (english_be or who.english_be).split()
    negation = rng.choices(["", "not", "never", "no longer"], (76, 18, 3, 3))[0]
    infinitive = "être"
    draw = rng.random()
    if draw < 0.14 and who.kind in ("person", "job", "pronoun", "animal"):
        en_state, fr_state = rng.choice(words.STATES)
        infinitive, en_rest, fr_rest = "avoir", [en_state], [fr_state]
    elif draw < 0.2 and who.kind in ("person", "pronoun") and not who.plural and not negation:
        en_number, fr_number = rng.choice([pair for pair in words.NUMBERS if pair[0] not in ("a hundred",)])
        infinitive, en_rest, fr_rest = "avoir", [en_number, "years old"], [fr_number, "ans"]
    elif draw < 0.34 and who.kind in ("person", "pronoun"):
        en_rest, fr_rest = _profession(rng, who)
    elif draw < 0.5:
        where_en, where_fr = place(rng)
        en_rest, fr_rest = [where_en], list(where_fr)
    else:
        en_rest, fr_rest = _attribute(rng, who)
    ne = ["ne"] if negation else []
    pas = [NEGATIONS[negation]] if negation else []
    finite = table(infinitive)[who.person]
    no = [negation] if negation else []
    return [who.en], [verb[0], *no, *verb[1:], *en_rest], list(who.fr), [*ne, finite, *pas, *fr_rest]


def _profession(rng: Random, who: Phrase) -> Parts:
    """A profession as the predicate of `who`, such as "a student" or "students", as English and French words."""
    noun = rng.choice([n for n in words.BY_KIND["job"] if not n.feminine or who.feminine])
    if who.feminine and not noun.feminine:
        noun = rng.choice([n for n in words.BY_KIND["job"] if n.feminine])
    adjective = rng.choice(words.ADJECTIVES_FOR["job"]) if rng.random() < 0.4 else None
    if who.plural:
        phrase = describe(noun, adjective, True, ("", "des"))
        return [phrase.en.strip()], list(phrase.fr)
    phrase = describe(noun, adjective, False, ("a", "une" if noun.feminine else "un"))
    return [phrase.en], list(phrase.fr)


def _attribute(rng: Random, who: Phrase) -> Parts:
    """An adjective as the predicate of `who`, sometimes with "very" or "too", sometimes in a comparison."""
    kind = "person" if who.kind == "pronoun" else who.kind
    chosen = rng.choice(words.ADJECTIVES_FOR.get(kind) or words.ADJECTIVES_FOR["person"])
    form = french.adjective(chosen.fr, who.feminine, who.plural)
    draw = rng.random()
    if draw < 0.22:
        en, fr = rng.choice([("very", "très"), ("too", "trop"), ("really", "vraiment"), ("a little", "un peu")])
        return [en, chosen.en], [fr, form]
    if draw < 0.36 and chosen.en not in ("good", "bad", "cheap", "open", "closed", "broken"):
        other = noun_phrase(rng, (kind,), "the own this", simple=True)
        mark, fr_mark = rng.choice([("more", "plus"), ("less", "moins"), ("as", "aussi")])
        than = "as" if mark == "as" else "than"
        if mark == "more" and chosen.en in _COMPARATIVES:
            return [_COMPARATIVES[chosen.en], than, other.en], [fr_mark, form, "que", *other.fr]
        return [mark, chosen.en, than, other.en], [fr_mark, form, "que", *other.fr]
    if draw < 0.44:
        second = rng.choice(words.ADJECTIVES_FOR.get(kind) or words.ADJECTIVES_FOR["person"])
        if second.fr != chosen.fr:
            other_form = french.adjective(second.fr, who.feminine, who.plural)
            return [chosen.en, "and", second.en], [form, "et", other_form]
    return [chosen.en], [form]


_COMPARATIVES = {
    "big": "bigger", "small": "smaller", "old": "older", "young": "younger", "tall": "taller", "strong": "stronger",
    "fast": "faster", "slow": "slower", "rich": "richer", "happy": "happier", "sad": "sadder", "funny": "funnier",
    "nice": "nicer", "long": "longer", "short": "shorter", "heavy": "heavier", "light": "lighter", "pretty": "prettier",
    "clean": "cleaner", "dirty": "dirtier", "cold": "colder", "hot": "hotter", "easy": "easier", "lazy": "lazier",
    "wide": "wider", "new": "newer", "brave": "braver", "shy": "shyer", "angry": "angrier", "busy": "busier",
}  # fmt: skip


def be_statement(rng: Random) -> Parts:
    """A random sentence with "to be", sometimes contracted as in "I'm"."""
    kinds = (
        "person", "job", "animal", "food", "thing", "clothes", "vehicle", "text", "place", "idea", "furniture",
        "opening",
    )  # fmt: skip
    who = subject(rng) if rng.random() < 0.65 else noun_phrase(rng, kinds, "the own this number")
    en_who, en_rest, fr_who, fr_rest = being(rng, who)
    if en_who[0] in ("I", "you", "we", "they") and en_rest[0] in ("am", "are") and rng.random() < 0.25:
        short = {"am": "I'm", "are": f"{en_who[0]}'re"}[en_rest[0]]
        return [short, *en_rest[1:]], [*fr_who, *fr_rest]
    return [*en_who, *en_rest], [*fr_who, *fr_rest]


def there_is(rng: Random) -> Parts:
    """A random sentence with "there is" or "there is not"."""
    kinds = ("person", "animal", "thing", "food", "furniture", "stuff")
    thing = noun_phrase(rng, kinds, "a number", simple=True)
    while not (thing.indefinite or thing.plural) or thing.fr[0] in ("les", "la", "le") or thing.kind == "":
        thing = noun_phrase(rng, kinds, "a number", simple=True)
    en_where, fr_where = place(rng)
    be = "are" if thing.plural else "is"
    if rng.random() < 0.2 and thing.indefinite:
        negative = Clause(PRONOUNS[2], Verb("have", "avoir"), "present", "not", thing)
        en = thing.en.replace("some ", "any ", 1) if thing.en.startswith("some ") else thing.en
        return ["there", be, "not", en, en_where], ["il", "ne", "y", "a", "pas", *object_words(negative), *fr_where]
    return ["there", be, thing.en, en_where], ["il", "y", "a", *thing.fr, *fr_where]


def having(rng: Random) -> Parts:
    """A random sentence with "to have", in one of several tenses."""
    who = subject(rng)
    kinds = ("animal", "thing", "vehicle", "clothes", "person", "idea", "furniture", "drink", "stuff")
    tense = rng.choice(["present", "present", "future", "would like to", "want to"])
    clause = Clause(who, Verb("have", "avoir", stative=True), tense)
    clause.object = noun_phrase(rng, kinds, "a number", simple=True)
    if rng.random() < 0.3:
        clause.negation, clause.contracted = "not", rng.random() < 0.4
    return english_statement(clause), french_statement(clause)


def where_is(rng: Random) -> Parts:
    """A random question such as "Where is the station?" or "How many apples are there?"."""
    if rng.random() < 0.35:
        noun = rng.choice(words.BY_KIND[rng.choice(("animal", "thing", "food", "person"))])
        en, fr = noun.forms(True)
        en_where, fr_where = place(rng)
        return ["how many", en, "are there", en_where], ["combien", "de", fr, "est-ce que", "il", "y", "a", *fr_where]
    thing = noun_phrase(rng, ("place", "thing", "person", "animal", "clothes", "job"), "the own")
    return ["where", thing.english_be, thing.en], ["où", french.present("être")[thing.person], *thing.fr]


def named(rng: Random) -> Parts:
    """A random sentence that states a name: "my name is Marie", "je m'appelle Marie"."""
    owner, fr_owner = rng.choice([("my", "je me"), ("his", "il se"), ("her", "elle se")])
    who = name(rng)
    form = french.present("appeler")[french.JE if owner == "my" else french.IL]
    return [owner, "name is", who.en], [*fr_owner.split(), form, who.en]
