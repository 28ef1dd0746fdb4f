"""Bilingual clauses: a subject, a verb in a tense, its objects, negation and questions.

The functions turn one `Clause` into an English or French statement, its negation, or a question.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from weights.demo.train.grammar import english, french
from weights.demo.train.grammar.phrases import Phrase
from weights.demo.train.grammar.words import Verb

# The French tense of each English tense. The mapping is one to one, so that every sentence has one translation.
TENSES = (
    "present", "progressive", "past", "past progressive", "used to", "perfect", "future", "going to", "would",
)  # fmt: skip
MODALS = {
    "can": "pouvoir", "must": "devoir", "have to": "devoir", "want to": "vouloir", "like to": "aimer",
    "would like to": "vouloir", "love to": "adorer", "should": "devoir", "hope to": "espérer", "know how to": "savoir",
}  # fmt: skip
_CONDITIONAL_MODALS = ("would like to", "should")
_TRUE_MODALS = ("can", "must", "should")
_REFLEXIVE = ("me", "te", "se", "nous", "vous", "se")
NEGATIONS = {"not": "pas", "never": "jamais", "no longer": "plus"}


@dataclass
class Clause:
    """Content of a clause in both languages: subject, verb, English tense, objects and complements."""

    subject: Phrase
    verb: Verb
    tense: str
    negation: str = ""
    object: Phrase | None = None
    clitic: tuple[str, str, bool, bool] | None = None  # English pronoun, French one, feminine, plural
    after: tuple[Sequence[str], Sequence[str]] = field(default=((), ()))  # complements, English and French
    adverb: tuple[str, str] | None = None  # such as "often" or "already", next to the verb
    contracted: bool = False  # "don't" instead of "do not"


def _english_verb(clause: Clause) -> tuple[str, list[str]]:
    """The auxiliary verb of a statement, empty if it has none, and the words of the verb after the auxiliary."""
    verb, tense, subject = clause.verb.en, clause.tense, clause.subject
    if tense in _TRUE_MODALS:
        return tense, [verb]
    if tense == "would like to":
        return "would", ["like to", verb]
    if tense in MODALS:
        return "", [english.third(tense) if subject.third_singular else tense, verb]
    if tense == "progressive":
        return subject.english_be, [english.ing(verb)]
    if tense == "past progressive":
        return "was" if subject.english_be != "are" else "were", [english.ing(verb)]
    if tense == "used to":
        return "", ["used to", verb]
    if tense == "perfect":
        return "has" if subject.third_singular else "have", [english.participle(verb)]
    if tense == "future":
        return "will", [verb]
    if tense == "going to":
        return subject.english_be, ["going to", verb]
    if tense == "would":
        return "would", [verb]
    if tense == "past":
        return "", [english.past(verb)]
    return "", [english.third(verb) if subject.third_singular else verb]


def _do_support(clause: Clause) -> tuple[str, list[str]]:
    """The auxiliary verb of a negation or question, and the words of the verb after it.

    A form of "do" is the auxiliary verb if the statement has none.
    """
    auxiliary, rest = _english_verb(clause)
    if auxiliary:
        return auxiliary, rest
    if clause.tense in ("past", "used to"):
        return "did", ["use to", clause.verb.en] if clause.tense == "used to" else [clause.verb.en]
    base = [clause.tense, clause.verb.en] if clause.tense in MODALS else [clause.verb.en]
    return "does" if clause.subject.third_singular else "do", base


_CONTRACTIONS = {"can not": "can't", "will not": "won't", "am not": "am not"}


def _not(auxiliary: str, contracted: bool) -> str:
    text = f"{auxiliary} not"
    if contracted:
        return _CONTRACTIONS.get(text, f"{auxiliary}n't")
    return "cannot" if auxiliary == "can" else text


def _english_tail(clause: Clause) -> list[str]:
    tail = []
    if clause.clitic:
        tail.append(clause.clitic[0])
    if clause.object:
        words = clause.object.en
        if clause.negation == "not" and words.startswith("some "):
            words = "any " + words.removeprefix("some ")
        tail.append(words)
    return [*tail, *clause.after[0]]


def english_statement(clause: Clause) -> list[str]:
    """The English words of the clause as a statement, negated if the clause is."""
    subject = clause.subject.en
    adverb = [clause.adverb[0]] if clause.adverb else []
    if clause.negation == "not":
        auxiliary, rest = _do_support(clause)
        return [subject, _not(auxiliary, clause.contracted), *adverb, *rest, *_english_tail(clause)]
    auxiliary, rest = _english_verb(clause)
    if clause.negation:
        adverb = [clause.negation]
    return [subject, *([auxiliary] if auxiliary else []), *adverb, *rest, *_english_tail(clause)]


def english_question(clause: Clause, lead: str = "") -> list[str]:
    """The English words of the question. lead: question word that it starts with; empty for none."""
    auxiliary, rest = _do_support(clause)
    adverb = [clause.adverb[0]] if clause.adverb else []
    words = [lead, auxiliary, clause.subject.en, *adverb, *rest, *_english_tail(clause)]
    return [word for word in words if word]


def object_words(clause: Clause) -> list[str]:
    """The French words of the object; none without an object. After a negation, "un", "des" and "du" become "de"."""
    if not clause.object:
        return []
    words = list(clause.object.fr)
    if clause.negation and clause.object.indefinite:
        if words[:2] in (["de", "la"], ["de", "le"]):
            return ["de", *words[2:]]
        if words[0] in ("un", "une", "des", "du", "de"):
            return ["de", *words[1:]]
    return words


def french_predicate(clause: Clause) -> list[str]:
    """The French words of the clause after its subject."""
    subject, tense = clause.subject, clause.tense
    infinitive, tail = clause.verb.french_parts
    reflexive = [_REFLEXIVE[subject.person]] if clause.verb.reflexive else []
    clitic = reflexive + ([clause.clitic[1]] if clause.clitic else [])
    negative = [NEGATIONS[clause.negation]] if clause.negation else []
    ne = ["ne"] if negative else []
    adverb = [clause.adverb[1]] if clause.adverb else []
    between = [*negative, *adverb]
    objects = object_words(clause)
    if tail and clause.object and tail.split()[-1] in ("à", "de"):
        objects, tail = french.contract(tail, list(clause.object.fr)), ""
    complements = [*([tail] if tail else []), *objects, *clause.after[1]]

    if tense in ("past", "perfect"):
        with_etre = bool(reflexive) or french.uses_etre(infinitive)
        auxiliary = french.present("être" if with_etre else "avoir")[subject.person]
        form = french.participle(infinitive)
        if with_etre:
            form = french.agree(form, subject.feminine, subject.plural)
        elif clause.clitic and clause.clitic[1] in _DIRECT:
            form = french.agree(form, clause.clitic[2], clause.clitic[3])
        return [*ne, *clitic, auxiliary, *between, form, *complements]
    if tense == "going to" or tense in MODALS:
        if tense == "going to":
            finite = french.present("aller")[subject.person]
        else:
            table = french.conditional if tense in _CONDITIONAL_MODALS else french.present
            finite = table(MODALS[tense])[subject.person]
        return [*ne, finite, *between, *clitic, infinitive, *complements]
    tables = {
        "present": french.present, "progressive": french.present, "past progressive": french.imperfect,
        "used to": french.imperfect, "future": french.future, "would": french.conditional,
    }  # fmt: skip
    finite = tables[tense](infinitive)[subject.person]
    return [*ne, *clitic, finite, *between, *complements]


_DIRECT = ("le", "la", "les", "me", "vous", "nous")


def french_statement(clause: Clause) -> list[str]:
    """The French words of the clause as a statement, negated if the clause is."""
    return [*clause.subject.fr, *french_predicate(clause)]


def french_question(clause: Clause, lead: str = "") -> list[str]:
    """The French words of the question, always with "est-ce que".

    lead: question word that it starts with; empty for none.
    """
    return [*([lead] if lead else []), "est-ce que", *french_statement(clause)]
