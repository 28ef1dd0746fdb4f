"""Grammars that generate the demo models' texts: French is correct, and each sentence has only one translation.

The training texts contain no held-out text.
"""

from __future__ import annotations

import random
import re
from itertools import islice

import pytest

from weights.demo.train import paraphrase, reviews, stories, translation
from weights.demo.train.grammar import english, french, words
from weights.demo.train.grammar.bilingual import PHRASEBOOK, informal, sentence
from weights.demo.train.grammar.clauses import Clause, english_statement, french_statement
from weights.demo.train.grammar.events import Event, event, near_miss, render
from weights.demo.train.grammar.phrases import PRONOUNS, describe
from weights.demo.train.grammar.words import Verb
from weights.demo.train.split import held_out

SPEAKER, YOU, HE, SHE, WE, THEY = PRONOUNS
VOWELS = "aàâeéèêiîoôuhœ"


@pytest.fixture(scope="module")
def pairs() -> list[tuple[str, str]]:
    rng = random.Random(99)
    return [sentence(rng) for _ in range(30_000)]


def write_clause(clause: Clause) -> tuple[str, str]:
    return english.write(english_statement(clause)), french.write(french_statement(clause))


def test_one_english_sentence_has_one_french_sentence(pairs: list[tuple[str, str]]) -> None:
    rng = random.Random(1)
    translations: dict[str, str] = {}
    for pair in [*PHRASEBOOK, *pairs]:
        for source, target in (pair, informal(rng, pair)):
            assert translations.setdefault(source, target) == target, source


def test_every_english_form_in_the_lexicon_has_one_french_form() -> None:
    forms: dict[str, tuple[str, bool]] = {}
    for noun in words.NOUNS:
        for plural in (False, True):
            en, fr = noun.forms(plural)
            assert forms.setdefault(en, (fr, noun.feminine)) == (fr, noun.feminine), en
    for lexicon in (words.TRANSITIVE, words.INTRANSITIVE, words.ADJECTIVES):
        known: dict[str, str] = {}
        for entry in lexicon:
            assert known.setdefault(entry.en, entry.fr) == entry.fr, entry


def test_the_lexicon_is_large() -> None:
    assert len(words.NOUNS) > 200
    assert len(words.TRANSITIVE) + len(words.INTRANSITIVE) > 120


def test_elision_and_contraction_are_always_applied(pairs: list[tuple[str, str]]) -> None:
    unelided = re.compile(rf"\b(je|ne|de|le|la|que|me|se) (?!{'|'.join(french._ASPIRATED)})[{VOWELS}]", re.IGNORECASE)
    uncontracted = re.compile(r"\b(de|à) (le|les) ", re.IGNORECASE)
    elided_aspirate = re.compile(r"\b[ldnj]'(hibou|huit|onze)", re.IGNORECASE)
    for _, target in pairs:
        assert not unelided.search(target), target
        assert not uncontracted.search(target), target
        assert not elided_aspirate.search(target), target


def test_determiners_and_adjectives_agree_with_every_noun() -> None:
    adjective = next(a for a in words.ADJECTIVES if a.en == "green")
    for noun in words.NOUNS:
        singular = describe(noun, adjective, False, ("a", "une" if noun.feminine else "un"))
        assert singular.fr[-1] == ("verte" if noun.feminine else "vert")
        plural = describe(noun, adjective, True, ("some", "des"))
        assert plural.fr[-1] == ("vertes" if noun.feminine else "verts")
        mine = describe(noun, None, False, ("my", "ma" if noun.feminine else "mon")).fr[0]
        assert mine == ("ma" if noun.feminine and not french.vowel_start(noun.fr) else "mon")
        this = describe(noun, None, False, ("this", "cette" if noun.feminine else "ce")).fr[0]
        assert this == ("cette" if noun.feminine else "cet" if french.vowel_start(noun.fr) else "ce")


def test_no_sentence_pairs_a_determiner_with_the_wrong_gender_or_number(pairs: list[tuple[str, str]]) -> None:
    feminine = {noun.fr for noun in words.NOUNS if noun.feminine}
    masculine = {noun.fr for noun in words.NOUNS if not noun.feminine}
    for _, target in pairs:
        for determiner, noun in re.findall(r"\b(un|une|du|au|ce|cet|cette|le|la|ma|sa) (\w+)\b", target.lower()):
            if determiner in ("une", "cette", "la", "ma", "sa"):
                assert noun not in masculine - feminine, target
            else:
                assert noun not in feminine - masculine, target


@pytest.mark.parametrize(
    ("adjective", "noun", "plural", "expected"),
    [
        ("beautiful", "tree", False, "un bel arbre"),
        ("old", "hotel", False, "un vieil hôtel"),
        ("new", "car", False, "une nouvelle voiture"),
        ("old", "woman", True, "de vieilles femmes"),
        ("red", "shoe", True, "des chaussures rouges"),
        ("jealous", "queen", False, "une reine jalouse"),
    ],
)
def test_noun_phrases(adjective: str, noun: str, plural: bool, expected: str) -> None:
    entry = next(n for n in words.NOUNS if n.en == noun)
    chosen = next(a for a in words.ADJECTIVES if a.en == adjective)
    determiner = ("some", "des") if plural else ("a", "une" if entry.feminine else "un")
    assert " ".join(describe(entry, chosen, plural, determiner).fr) == expected


@pytest.mark.parametrize(
    ("clause", "expected"),
    [
        (Clause(SHE, Verb("arrive", "arriver"), "perfect"), ("She has arrived.", "Elle est arrivée.")),
        (Clause(THEY, Verb("fall", "tomber"), "past"), ("They fell.", "Ils sont tombés.")),
        (
            Clause(SPEAKER, Verb("see", "voir"), "past", clitic=("her", "la", True, False)),
            ("I saw her.", "Je l'ai vue."),
        ),
        (
            Clause(WE, Verb("get up", "se lever"), "past", negation="not"),
            ("We did not get up.", "Nous ne nous sommes pas levés."),
        ),
        (
            Clause(HE, Verb("eat", "manger"), "past progressive", negation="never"),
            ("He was never eating.", "Il ne mangeait jamais."),
        ),
        (Clause(YOU, Verb("speak", "parler"), "future"), ("You will speak.", "Vous parlerez.")),
        (Clause(SPEAKER, Verb("wait", "attendre"), "would"), ("I would wait.", "J'attendrais.")),
        (Clause(THEY, Verb("buy", "acheter"), "going to"), ("They are going to buy.", "Ils vont acheter.")),
    ],
)
def test_clauses(clause: Clause, expected: tuple[str, str]) -> None:
    assert write_clause(clause) == expected


@pytest.mark.parametrize(
    ("verb", "forms"),
    [
        ("manger", ("mange", "mangeons", "mangeais", "mangions", "mangerai", "mangé")),
        ("commencer", ("commence", "commençons", "commençais", "commencions", "commencerai", "commencé")),
        ("préférer", ("préfère", "préférons", "préférais", "préférions", "préférerai", "préféré")),
        ("acheter", ("achète", "achetons", "achetais", "achetions", "achèterai", "acheté")),
        ("finir", ("finis", "finissons", "finissais", "finissions", "finirai", "fini")),
        ("prendre", ("prends", "prenons", "prenais", "prenions", "prendrai", "pris")),
        ("être", ("suis", "sommes", "étais", "étions", "serai", "été")),
    ],
)
def test_conjugation(verb: str, forms: tuple[str, ...]) -> None:
    present, imperfect, future = french.present(verb), french.imperfect(verb), french.future(verb)
    assert (present[0], present[3], imperfect[0], imperfect[3], future[0], french.participle(verb)) == forms


def test_the_held_out_choice_ignores_case_and_punctuation() -> None:
    rng = random.Random(5)
    for _ in range(2000):
        source, _ = sentence(rng)
        assert held_out(source) == held_out(source.rstrip(".?!").lower()) == held_out(source.upper())


def without_punctuation(text: str) -> str:
    return re.sub(r"[^a-z0-9' ]", "", text.lower())


def test_training_contains_no_held_out_text() -> None:
    training = {
        without_punctuation(source) for source, _ in islice(translation.training_pairs(random.Random(1)), 30_000)
    }
    assert not training & {without_punctuation(source) for source, _ in translation.held_out_pairs(300)}
    story = {without_punctuation(text) for text in islice(stories.training_stories(random.Random(2)), 2000)}
    assert not story & {without_punctuation(text) for text in stories.held_out_stories(50)}
    written = {without_punctuation(text) for text, _ in islice(reviews.training_reviews(random.Random(3)), 30_000)}
    assert not written & {without_punctuation(text) for text, _ in reviews.held_out_reviews(500)}


def test_training_contains_no_held_out_event(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: set[str] = set()

    def record(rng: random.Random, meant: Event) -> str:
        rendered.add(meant.key())
        return render(rng, meant)

    monkeypatch.setattr(paraphrase, "render", record)
    for _ in islice(paraphrase.training_groups(random.Random(4)), 3000):
        pass
    assert len(rendered) > 3000
    assert not any(held_out(key) for key in rendered)


def test_near_misses_have_another_meaning() -> None:
    rng = random.Random(6)
    for _ in range(2000):
        meant = event(rng)
        missed = near_miss(rng, meant)
        assert missed != meant


def test_reviews_are_balanced_and_have_one_label() -> None:
    labels: dict[str, int] = {}
    for text, label in islice(reviews.training_reviews(random.Random(7)), 20_000):
        assert labels.setdefault(without_punctuation(text), label) == label, text
    assert 0.45 < sum(labels.values()) / len(labels) < 0.55


def test_stories_are_well_formed() -> None:
    for text in islice(stories.training_stories(random.Random(8)), 1000):
        assert text[0].isupper()
        assert text[-1] in '.!?"'
        assert text.count('"') % 2 == 0
        assert not re.search(r"[\[\]{}|]|  | [.,]|\ba [aeio]", text), text
