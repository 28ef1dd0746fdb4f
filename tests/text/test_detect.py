"""Language detection with the real detector, restricted to given languages."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from server.text.languages import detect
from server.text.languages.detect import DetectionError, LanguageDetector
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
