"""The synchronous English-French grammar: `sentence` draws an English sentence and its only French translation."""

from __future__ import annotations

from dataclasses import replace
from random import Random

from weights.demo.train.grammar import english, french, words
from weights.demo.train.grammar.clauses import (
    NEGATIONS,
    Clause,
    english_question,
    english_statement,
    french_question,
    french_statement,
)
from weights.demo.train.grammar.phrases import (
    PEOPLE,
    PRONOUNS,
    Phrase,
    company,
    describe,
    destination,
    name,
    noun_phrase,
    person,
    place,
    pronoun_for,
    subject,
)
from weights.demo.train.grammar.states import Parts, be_statement, being, having, named, there_is, where_is
from weights.demo.train.grammar.words import Verb

Pair = tuple[str, str]

_CLITICS = [
    ("me", "me", False, False), ("you", "vous", False, False), ("him", "le", False, False),
    ("her", "la", True, False), ("us", "nous", False, True), ("them", "les", False, True),
]  # fmt: skip
_TO_CLITICS = [("me", "me"), ("you", "vous"), ("him", "lui"), ("her", "lui"), ("us", "nous"), ("them", "leur")]
_TENSE_WEIGHTS = {
    "present": 22, "progressive": 12, "past": 18, "past progressive": 6, "used to": 4, "perfect": 8, "future": 11,
    "going to": 7, "would": 5, "can": 5, "must": 3, "have to": 3, "want to": 5, "like to": 3, "would like to": 4,
    "love to": 2, "should": 3, "hope to": 2, "know how to": 1,
}  # fmt: skip
_STATIVE_TENSES = ("present", "past", "perfect", "future", "would", "can", "must", "want to", "should")
_TIME_OF = {
    "present": "present", "progressive": "now", "past": "past", "past progressive": "past", "future": "future",
    "going to": "future", "must": "future", "have to": "future", "want to": "future", "would like to": "future",
    "hope to": "future", "can": "future",
}  # fmt: skip
_MOVEMENT = [Verb("go", "aller"), Verb("go", "aller"), Verb("travel", "voyager"), Verb("return", "retourner")]
_CONJUNCTIONS = [
    ("because", "parce que"), ("because", "parce que"), ("but", "mais"), ("and", "et"), ("so", "donc"),
]  # fmt: skip
_LIKING = {"like", "love", "hate", "prefer"}

PHRASEBOOK: list[Pair] = [
    (en, fr)
    for en, fr in (
        line.split(" = ")
        for line in """
I am a student. = Je suis un étudiant.
Hello! = Bonjour !
Hello. = Bonjour.
Good morning. = Bonjour.
Good evening. = Bonsoir.
Good night. = Bonne nuit.
Goodbye. = Au revoir.
Thank you. = Merci.
Thank you very much. = Merci beaucoup.
Yes. = Oui.
No. = Non.
Please. = S'il vous plaît.
How are you? = Comment allez-vous ?
I am fine. = Je vais bien.
What is your name? = Comment vous appelez-vous ?
What time is it? = Quelle heure est-il ?
It is raining. = Il pleut.
It is snowing. = Il neige.
It is cold. = Il fait froid.
It is hot. = Il fait chaud.
I do not know. = Je ne sais pas.
I don't know. = Je ne sais pas.
I love you. = Je vous aime.
See you tomorrow. = À demain.
Welcome. = Bienvenue.
Of course. = Bien sûr.
Excuse me. = Excusez-moi.
Where are you from? = D'où venez-vous ?
Happy birthday! = Joyeux anniversaire !
""".strip().splitlines()
    )
]

_FIXED = dict(PHRASEBOOK)  # the phrasebook takes precedence over the grammar


def _tense(rng: Random, verb: Verb) -> str:
    while True:
        tense = rng.choices(list(_TENSE_WEIGHTS), list(_TENSE_WEIGHTS.values()))[0]
        if not verb.stative or tense in _STATIVE_TENSES:
            return tense


def _ambiguous(clause: Clause) -> bool:
    """Whether the English verb may be present or past, as in "I read" (je lis, j'ai lu).

    Such clauses are drawn again, because they have two translations.
    """
    verb = clause.verb.en
    return clause.tense == "past" and english.past(verb) == verb and clause.negation != "not"


def _transitive(rng: Random, who: Phrase) -> Clause:
    verb = rng.choice(words.TRANSITIVE)
    clause = Clause(who, verb, _tense(rng, verb))
    people = any(kind in PEOPLE for kind in verb.kinds)
    prepositional = " " in verb.fr
    if people and not prepositional and rng.random() < 0.4:
        others = [p.person != who.person or p.person == french.IL for p in PRONOUNS]
        choices = [clitic for clitic, other in zip(_CLITICS, others, strict=True) if other]
        clause.clitic = rng.choice([c for c in choices if not (who.person == french.ILS and c[0] == "them")])
        return clause
    if verb.en in _LIKING and rng.random() < 0.5:
        clause.object = _generic(rng, verb)
        return clause
    allowed = "the own this number" if prepositional or verb.en in _LIKING else "the a own this number"
    clause.object = noun_phrase(rng, verb.kinds, allowed)
    return clause


def _generic(rng: Random, verb: Verb) -> Phrase:
    """A random object of the verb that means its whole class: "I like cats", "j'aime les chats"."""
    kinds = [kind for kind in verb.kinds if kind not in ("person", "job")] or ["animal"]
    noun = rng.choice(words.BY_KIND[rng.choice(kinds)])
    plural = noun.kind not in ("stuff", "drink")
    article = "les" if plural else "la" if noun.feminine else "le"
    phrase = describe(noun, None, plural, ("", article))
    return replace(phrase, en=phrase.en.strip())


def _giving(rng: Random, who: Phrase) -> Clause:
    verb = rng.choice(words.GIVING)
    clause = Clause(who, verb, _tense(rng, verb))
    clause.object = noun_phrase(rng, ("thing", "text", "food", "clothes"), simple=True)
    if rng.random() < 0.5:
        en, fr = rng.choice([c for c, p in zip(_TO_CLITICS, PRONOUNS, strict=True) if p.person != who.person])
        clause.clitic = (en, fr, False, False)
    else:
        other = person(rng)
        clause.after = ([f"to {other.en}"], french.contract("à", other.fr))
    return clause


def _going(rng: Random, who: Phrase) -> Clause:
    verb = rng.choice(_MOVEMENT)
    en, fr = destination(rng)
    return Clause(who, verb, _tense(rng, verb), after=([en], fr))


def _intransitive(rng: Random, who: Phrase) -> Clause:
    verb = rng.choice(words.INTRANSITIVE)
    clause = Clause(who, verb, _tense(rng, verb))
    if " " not in verb.en and rng.random() < 0.15:
        en, fr = rng.choice(words.MANNER)
        clause.after = ([en], [fr])
    return clause


def _extend(rng: Random, clause: Clause, chance: float = 0.3) -> None:
    """With probability `chance`, add a place or a companion to the clause. Verbs of movement already have a place."""
    en, fr = list(clause.after[0]), list(clause.after[1])
    moving = any(clause.verb is verb for verb in _MOVEMENT)
    if not moving and rng.random() < chance:
        where = place(rng) if rng.random() < 0.7 else company(rng)
        if (clause.verb.en, where[0][:4]) != ("wait", "for "):  # "wait for someone" is "attendre quelqu'un"
            en, fr = [*en, where[0]], [*fr, *where[1]]
    clause.after = (en, fr)


def action(rng: Random, who: Phrase) -> Clause:
    """A random clause with the subject `who` and a verb of action, sometimes with a negation or an adverb."""
    while True:
        draw = rng.random()
        if draw < 0.55:
            clause = _transitive(rng, who)
        elif draw < 0.65:
            clause = _giving(rng, who)
        elif draw < 0.75:
            clause = _going(rng, who)
        else:
            clause = _intransitive(rng, who)
        if rng.random() < 0.24:
            clause.negation = rng.choices(list(NEGATIONS), (70, 20, 10))[0]
            clause.contracted = rng.random() < 0.4
        elif clause.tense not in ("progressive", "going to") and rng.random() < 0.08:
            clause.adverb = rng.choice(words.FREQUENCY)
        if not _ambiguous(clause):
            return clause


def _with_time(rng: Random, clause: Clause, parts: Parts) -> Parts:
    kind = _TIME_OF.get(clause.tense)
    if not kind or clause.negation in ("never", "no longer") or clause.adverb or rng.random() > 0.3:
        return parts
    en, fr = rng.choice(words.TIMES[kind])
    if rng.random() < 0.25:
        return [en, ",", *parts[0]], [fr, ",", *parts[1]]
    return [*parts[0], en], [*parts[1], fr]


def _say(rng: Random, clause: Clause) -> Parts:
    return english_statement(clause), french_statement(clause)


def _plain(rng: Random, who: Phrase | None = None) -> Parts:
    clause = action(rng, who or subject(rng))
    _extend(rng, clause)
    return _with_time(rng, clause, _say(rng, clause))


def _short(rng: Random, who: Phrase) -> Parts:
    """The English and French words of a short clause with the subject `who`, for one half of a compound sentence."""
    if rng.random() < 0.4:
        en_who, en_rest, fr_who, fr_rest = being(rng, who)
        return [*en_who, *en_rest], [*fr_who, *fr_rest]
    return _say(rng, action(rng, who))


def _compound(rng: Random) -> Parts:
    who = subject(rng)
    first = _short(rng, who)
    en, fr = rng.choice(_CONJUNCTIONS)
    taken_up = who.kind in (*PEOPLE, "pronoun") and rng.random() < 0.7
    following = pronoun_for(who) if taken_up else rng.choice(PRONOUNS[:5])
    if who.kind == "animal":
        following = rng.choice([PRONOUNS[0], PRONOUNS[1], PRONOUNS[4]])
    if following.person == french.IL and following.feminine != who.feminine and who.plural:
        following = PRONOUNS[0]
    second = _short(rng, following)
    comma = [","] if en in ("but", "so") else []
    fr_comma = comma
    return [*first[0], *comma, en, *second[0]], [*first[1], *fr_comma, fr, *second[1]]


def _reported(rng: Random) -> Parts:
    who = rng.choice([*PRONOUNS, name(rng), person(rng)])
    verb = rng.choice([Verb("think", "penser"), Verb("say", "dire"), Verb("know", "savoir"), Verb("believe", "croire")])
    en, fr = _say(rng, Clause(who, verb, "present"))
    second = _short(rng, rng.choice([PRONOUNS[0], PRONOUNS[1], PRONOUNS[4], name(rng), person(rng)]))
    return [*en, "that", *second[0]], [*fr, "que", *second[1]]


def _question(rng: Random) -> Parts:
    draw = rng.random()
    who = subject(rng)
    if draw < 0.3:
        en_who, en_rest, fr_who, fr_rest = being(rng, who)
        return [en_rest[0], *en_who, *en_rest[1:]], ["est-ce que", *fr_who, *fr_rest]
    clause = action(rng, who)
    clause.negation = ""
    if draw < 0.55:
        _extend(rng, clause, 0.2)
        return english_question(clause), french_question(clause)
    if draw < 0.85:
        en, fr = rng.choice([("where", "où"), ("when", "quand"), ("why", "pourquoi"), ("how", "comment")])
        return english_question(clause, en), french_question(clause, fr)
    if draw < 0.93:
        verb = rng.choice([v for v in words.TRANSITIVE if "food" in v.kinds or "idea" in v.kinds])
        asked = Clause(who, verb, "present")
        asked.tense = _tense(rng, asked.verb)
        return english_question(asked, "what"), ["que", *french_question(asked)]
    anyone = Phrase("who", ("qui",), french.IL)
    clause = action(rng, anyone)
    clause.negation = ""
    if _ambiguous(clause):
        clause.tense = "future"
    return english_statement(clause), french_statement(clause)


def _command(rng: Random) -> Parts:
    verb = rng.choice([v for v in words.TRANSITIVE if not v.stative])
    clause = Clause(PRONOUNS[1], verb, "present", "not" if rng.random() < 0.3 else "")
    allowed = "the own this number" if " " in verb.fr else "the a own this number"
    clause.object = noun_phrase(rng, verb.kinds, allowed)
    _extend(rng, clause, 0.15)
    en = english_statement(clause)[1:]
    please = ([",", "please"], [",", "s'il vous plaît"]) if rng.random() < 0.25 else ([], [])
    return [*en, *please[0]], [*french_statement(clause)[1:], *please[1]]


_KINDS = [
    (_plain, 46, "."), (be_statement, 19, "."), (_question, 11, "?"), (_compound, 9, "."), (there_is, 3, "."),
    (having, 4, "."), (_reported, 3, "."), (where_is, 2, "?"), (_command, 4, "!"), (named, 0.4, "."),
]  # fmt: skip
_WEIGHTS = [weight for _, weight, _ in _KINDS]


def sentence(rng: Random) -> Pair:
    """A random English sentence and its French translation, both with a capital and final punctuation."""
    make, _, end = rng.choices(_KINDS, _WEIGHTS)[0]
    en, fr = make(rng)
    if end == "!" and rng.random() < 0.5:
        end = "."
    source = english.write(en, end)
    return source, _FIXED.get(source, french.write(fr, end))


def bare(text: str) -> str:
    """The sentence without its final punctuation."""
    return text.rstrip(".?!").rstrip()


def informal(rng: Random, pair: Pair) -> Pair:
    """Sometimes remove the final punctuation of both sentences, and sometimes the capital of the English one."""
    source, target = pair
    draw = rng.random()
    if draw < 0.12 or draw > 0.94:
        source, target = bare(source), bare(target)
    if draw > 0.88:
        source = source[0].lower() + source[1:]
    return source, target
