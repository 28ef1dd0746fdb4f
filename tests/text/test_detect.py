"""Language detection with the real detector, where only given languages are possible."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from server.text.languages import detect
from server.text.languages.detect import DetectionError, LanguageDetector
from server.text.languages.frequent_words import word_weights
from server.text.languages.language_codes import parse_language

SENTENCES = {
    "en": "The garden behind the old house is small.",
    "de": "Der Garten hinter dem alten Haus ist klein.",
    "fr": "Le jardin derrière la vieille maison est petit.",
    "no": "Hagen bak det gamle huset er liten.",
}


@pytest.fixture(scope="module")
def detector() -> Iterator[LanguageDetector]:
    detector = LanguageDetector()
    yield detector
    detector.close()


@pytest.mark.parametrize("precise", [True, False])
def test_sentences_are_recognized(detector: LanguageDetector, precise: bool) -> None:
    found = detector.detect(list(SENTENCES.values()), SENTENCES, precise)
    assert [ranked[0].language for ranked in found] == list(SENTENCES)
    for ranked in found:
        assert sum(detected.share for detected in ranked) == pytest.approx(1.0, abs=1e-6)
        assert [detected.share for detected in ranked] == sorted((detected.share for detected in ranked), reverse=True)


SHORT = {
    "en": ["The garden is small.", "Where is the station?", "My dog runs fast."],
    "fr": ["Le jardin est petit.", "Le chien court.", "Je suis fatigué."],
    "de": ["Der Garten ist klein.", "Wo ist der Bahnhof?", "Mein Hund läuft schnell."],
    "es": ["El perro corre.", "Ella tiene dos gatos.", "El jardín es pequeño."],
    "it": ["Il cane corre.", "Lei ha due gatti.", "Il giardino è piccolo."],
    "pt": ["O cão corre.", "Ela tem dois gatos.", "O jardim é pequeno."],
}


@pytest.mark.parametrize("language", SHORT)
def test_short_sentences_are_told_apart_by_frequent_words(detector: LanguageDetector, language: str) -> None:
    for first, *others in detector.detect(SHORT[language], SHORT, True):
        assert first.language == language and all(first.share > 1.5 * other.share for other in others)


def test_weights_of_frequent_words() -> None:
    even = {"en": 0.25, "fr": 0.25, "nb": 0.5}
    weighted = word_weights("Le chien court.", even)
    assert max(weighted, key=weighted.__getitem__) == "fr" and sum(weighted.values()) == pytest.approx(1)
    assert word_weights("L'homme est là", even)["fr"] > 0.8
    assert word_weights("jeg er", even)["nb"] > 0.8
    for text in ("Paris", "", "the " * 13, "xx yy"):
        assert word_weights(text, even) == pytest.approx(even)


def test_only_the_given_languages_are_considered(detector: LanguageDetector) -> None:
    ((best, *_),) = detector.detect([SENTENCES["de"]], ["en", "fr"], True)
    assert best.language in ("en", "fr")


def test_a_text_without_letters_has_no_language(detector: LanguageDetector) -> None:
    assert detector.detect(["123 !", "", SENTENCES["en"]], ["en", "de"], True)[:2] == [[], []]
    assert detector.detect(["12", "Garten"], ["en"], True) == [[], [detect.DetectedLanguage("en", 1.0)]]


def test_languages_that_cannot_be_detected_are_an_error(detector: LanguageDetector) -> None:
    with pytest.raises(DetectionError, match="can be detected"):
        detector.detect(["a"], ["ast", "kab"], True)
    with pytest.raises(DetectionError, match="en is the only language"):
        detector.detect(["a"], ["en", "kab"], True)


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(detect, "find_spec", lambda name: None)
    with pytest.raises(DetectionError, match=r"pip install .triptych\[detect\]"):
        LanguageDetector().detect(["a b"], ["en", "de"], True)


def test_a_dead_process_is_replaced(detector: LanguageDetector) -> None:
    detector.detect(["Garten"], ["en", "de"], False)
    process = psutil.Process(detector._process.pid)
    process.kill()
    process.wait()
    assert detector.detect([SENTENCES["de"]], ["en", "de"], False)[0][0].language == "de"


def test_the_list_of_languages_is_that_of_the_package() -> None:
    from lingua import Language

    known = {language.iso_code_639_1.name.lower() for language in Language.all()}
    assert {code for codes in detect._BY_LANGUAGE.values() for code in codes} == known
    assert all((parsed := parse_language(code)) and parsed.language in detect._BY_LANGUAGE for code in known)
