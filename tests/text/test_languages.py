"""Language codes, and the language pairs that Marian, T5 and BART checkpoints translate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from server.text.languages.chinese import chinese_script
from server.text.languages.language_codes import Language, english_name, is_collective, parse_language
from server.text.languages.language_offers import Offer, Source, Target
from server.text.languages.languages import TranslationLanguages, UnknownPair
from server.text.languages.offered_languages import offered_languages
from server.text.languages.pivots import chosen_pivot, connecting_languages, pivoted_pairs
from server.text.tokenizers.load import load_tokenizer
from tests.text import checkpoints


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("de", Language("de")),
        ("DEU", Language("de")),
        ("ger", Language("de")),
        ("de-AT", Language("de", None, "AT")),
        ("de_DE", Language("de", None, "DE")),
        ("deu_Latn", Language("de", "Latn")),
        ("zho_Hans", Language("zh", "Hans")),
        ("cmn-Hant-TW", Language("zh", "Hant", "TW")),
        ("es-419", Language("es", None, "419")),
        ("arb_Arab", Language("ar", "Arab")),
        ("ceb", Language("ceb")),
        ("nob", Language("no")),
        ("english", None),
        ("e", None),
        ("", None),
        ("de-AT-1996-x", None),
        ("de; DROP", None),
    ],
)
def test_codes_of_all_notations_are_parsed(code: str, expected: Language | None):
    assert parse_language(code) == expected


def test_english_names_and_language_groups():
    assert english_name(Language("fr")) == "French" and english_name(Language("ceb")) is None
    assert is_collective("roa") and is_collective("ROMANCE") and is_collective("mul") and not is_collective("fra")


def _marian(
    directory: Path, source: str | None, target: str | None, tokens: tuple[str, ...] = ()
) -> TranslationLanguages:
    checkpoints.write_marian(directory)
    config = {"source_lang": source, "target_lang": target, "tokenizer_class": "MarianTokenizer"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    vocabulary = json.loads((directory / "vocab.json").read_text())
    kept = {token: index for token, index in vocabulary.items() if not token.startswith(">>")}
    kept |= {token: 1000 + index for index, token in enumerate(tokens)}
    (directory / "vocab.json").write_text(json.dumps(kept))
    return TranslationLanguages.from_checkpoint(directory, "marian", load_tokenizer(directory))


def test_languages_are_optional_for_a_single_pair(tmp_path: Path):
    languages = _marian(tmp_path, "en", "fr")
    assert languages.pairs() == [("en", "fr")]
    for source, target in ((None, None), ("en", "fr"), ("eng_Latn", "fra_Latn"), ("en-GB", None), (None, "fr_FR")):
        prompt = languages.match(source, target)
        assert (prompt.source_lang, prompt.target_lang, prompt.leading_source_ids, prompt.prefix) == (
            "en",
            "fr",
            (),
            "",
        )


@pytest.mark.parametrize(
    ("source", "target"), [("fr", "en"), ("en", "de"), ("xx", None), ("not a code", "fr"), ("en", "")]
)
def test_the_error_for_other_pairs_lists_the_offered_ones(tmp_path: Path, source: str, target: str | None):
    with pytest.raises(UnknownPair, match="this model translates en-fr"):
        _marian(tmp_path, "en", "fr").match(source, target)


@pytest.mark.parametrize(
    "name", ["opus-mt-en-fr", "opus-mt-tc-big-en-fr", "models--Helsinki-NLP--opus-mt-en-fr/snapshots/abc"]
)
def test_the_directory_name_replaces_a_missing_configuration(tmp_path: Path, name: str):
    assert _marian(tmp_path / name, None, None).pairs() == [("en", "fr")]


def test_a_marian_model_without_languages_offers_nothing(tmp_path: Path):
    languages = _marian(tmp_path / "mine", None, None)
    assert languages.pairs() == []
    with pytest.raises(UnknownPair, match="has no list of languages"):
        languages.match(None, None)


def test_target_tokens_select_the_language(tmp_path: Path):
    tokens = (">>fra<<", ">>pt_br<<", ">>por<<", ">>zho_Hans<<", ">>zho_Hant<<", ">>id<<", ">>not a code<<")
    languages = _marian(tmp_path, "en", "mul", tokens)
    assert languages.pairs() == [("en", token[2:-2]) for token in tokens[:-1]]
    for code, index in (
        ("fr", 0),
        ("pt", 2),
        ("pt-BR", 1),
        ("pt-PT", 2),
        ("zho_Hant", 4),
        ("zh_Hans", 3),
        ("ind_Latn", 5),
    ):
        assert languages.match("en", code).leading_source_ids == (1000 + index,), code
    with pytest.raises(UnknownPair, match="`target_lang` is required"):
        languages.match("en", None)
    with pytest.raises(UnknownPair, match="`target_lang` is required"):
        languages.match(None, None)
    with pytest.raises(UnknownPair, match="this translation is not offered"):
        languages.match("en", "de")


def test_scripts_and_regions_stay_apart(tmp_path: Path):
    tokens = (">>fra<<", ">>pt_br<<", ">>por<<", ">>zho_Hans<<", ">>zho_Hant<<", ">>deu_Latn<<", ">>kas_Arab<<")
    languages = _marian(tmp_path / "en", "en", "mul", (*tokens, ">>kas_Deva<<"))
    offered = {language.code: (language.name, language.targets) for language in offered_languages([languages])}
    codes = ("de", "fr", "ks", "ks-Deva", "pt", "pt-BR", "zh", "zh-Hant")
    assert offered.pop("en") == ("English", codes)
    assert set(offered) == set(codes) and not any(targets for _, targets in offered.values())
    assert offered["zh-Hant"][0] == "Chinese (traditional)" and offered["pt-BR"][0] == "Portuguese (Brazil)"
    for code in codes:
        index = languages.match("en", code).leading_source_ids
        assert index == languages.match("en", languages.match("en", code).target_lang).leading_source_ids
    assert len({languages.match("en", code).leading_source_ids for code in codes}) == len(codes)
    assert languages.match("en", "zh").target_lang == "zho_Hans"
    reverse = _marian(tmp_path / "two", "en", "mul", (">>zho_Hant<<", ">>zho_Hans<<"))
    assert reverse.match("en", "zh").target_lang == "zho_Hans"


def test_the_example_is_a_pair_that_the_checkpoint_translates(tmp_path: Path):
    assert _marian(tmp_path / "one", "en", "fr").example() == ("en", "fr")
    assert _marian(tmp_path / "two", "ROMANCE", "en").example() == ("de", "en")
    assert _marian(tmp_path / "none", None, None).example() is None
    for source, target in (("mul", "en"), ("en", "mul")):
        languages = _marian(tmp_path / source, source, target, (">>fra<<", ">>deu<<") if target == "mul" else ())
        example = languages.example()
        assert example and "mul" not in example and languages.match(*example)


def test_a_pair_of_one_language_copies(tmp_path: Path):
    languages = _marian(tmp_path / "one", "en", "fr")
    for source, target in (("en", "en"), ("en-US", "en-GB"), ("fr", "fra_Latn"), ("fr-CA", "fr")):
        prompt = languages.match(source, target)
        assert (prompt.copies, prompt.source_lang, prompt.target_lang) == (True, source, target)
    assert not languages.match("en", "fr").copies
    with pytest.raises(UnknownPair):
        languages.match("de", "de")
    chinese = _marian(tmp_path / "two", "zho_Hans", "mul", (">>zho_Hant<<", ">>eng<<"))
    assert chinese.match("zh", "zh-CN").copies and chinese.match("zh-TW", "zh-Hant").copies
    assert not chinese.match("zh", "zh-TW").copies and not chinese.match("zh-CN", "zho_Hant").copies
    with pytest.raises(UnknownPair):
        chinese.match("zh-Hant", "zh-Hans")


@pytest.mark.parametrize(
    ("text", "script"), [("这个国家", "Hans"), ("這個國家", "Hant"), ("人山水", None), ("abc", None), ("", None)]
)
def test_the_script_of_chinese(text: str, script: str | None):
    assert chinese_script(text) == script


def test_a_long_list_of_translations_is_shortened(tmp_path: Path):
    tokens = tuple(f">>{first}{second}<<" for first in "abcdef" for second in "abcdefgh")
    with pytest.raises(UnknownPair, match="and 18 more"):
        _marian(tmp_path, "en", "mul", tokens).match("fr", "en")


def test_a_language_group_matches_any_source(tmp_path: Path):
    languages = _marian(tmp_path, "ROMANCE", "en")
    assert languages.pairs() == [("mul", "en")]
    assert languages.match("fr", "en") == languages.match("ron_Latn", None) == languages.match(None, None)


def test_several_source_languages(tmp_path: Path):
    languages = _marian(tmp_path, "fr+de", "en")
    assert languages.pairs() == [("fr", "en"), ("de", "en")]
    assert languages.match("deu", "en").source_lang == "de"
    with pytest.raises(UnknownPair, match="`source_lang` is required"):
        languages.match(None, "en")


def test_t5_prefixes_of_the_configuration(tmp_path: Path):
    directory = checkpoints.write_t5(tmp_path)
    tasks = {
        "summarization": {"prefix": "summarize: "},
        "translation_en_to_de": {"prefix": "translate English to German: ", "num_beams": 4},
        "translation_en_to_fr": {"prefix": "to French: "},
        "translation_en_to_ro": {"num_beams": 4},
    }
    (directory / "config.json").write_text(json.dumps({"model_type": "t5", "task_specific_params": tasks}))
    languages = TranslationLanguages.from_checkpoint(directory, "t5", load_tokenizer(directory))
    assert languages.pairs() == [("en", "de"), ("en", "fr")]
    assert languages.match("eng_Latn", "de-AT").prefix == "translate English to German: "
    assert languages.match(None, "fr").prefix == "to French: "
    with pytest.raises(UnknownPair, match="en-de, en-fr"):
        languages.match("en", "ro")


def test_t5_without_prefixes_takes_languages_by_name(tmp_path: Path):
    directory = checkpoints.write_t5(tmp_path)
    languages = TranslationLanguages.from_checkpoint(directory, "t5", load_tokenizer(directory))
    assert languages.pairs() == []
    assert languages.match("eng_Latn", "fr_FR").prefix == "translate English to French: "
    for pair in ((None, "fr"), ("en", None), ("en", "ceb"), ("en", "?")):
        with pytest.raises(UnknownPair):
            languages.match(*pair)


def test_madlad_translates_from_any_language_to_those_with_a_token(tmp_path: Path):
    directory = checkpoints.write_t5(tmp_path)
    path = directory / "tokenizer_config.json"
    tokens = {"9000": "<2de>", "9001": "<2zh_Latn>", "9002": "<2translit>", "9003": "<2>"}
    added = {index: {"content": token} for index, token in tokens.items()}
    settings = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(
        json.dumps({**settings, "added_tokens_decoder": {**settings.get("added_tokens_decoder", {}), **added}})
    )
    tokenizer = load_tokenizer(directory)
    languages = TranslationLanguages.from_checkpoint(directory, "t5", tokenizer)
    assert languages.pairs() == [("mul", "de"), ("mul", "zh_Latn")]
    prompt = languages.match("fr", "de")
    assert (prompt.prefix, prompt.source_lang, prompt.target_lang) == ("<2de> ", None, "de")
    assert languages.match(None, "zh-Latn").prefix == "<2zh_Latn> "
    assert languages.sources("de") is None
    with pytest.raises(UnknownPair, match="mul-de"):
        languages.match("de", "fr")
    with pytest.raises(UnknownPair, match="`target_lang` is required"):
        languages.match("fr", None)


def test_bart_offers_only_the_prefixes_of_its_configuration(tmp_path: Path):
    directory = checkpoints.write_byte_level(tmp_path, "roberta")
    tokenizer = load_tokenizer(directory)
    languages = TranslationLanguages.from_checkpoint(directory, "bart", tokenizer)
    with pytest.raises(UnknownPair, match="has no list of languages"):
        languages.match("en", "fr")
    tasks = {"translation_en_to_fr": {"prefix": "fr: "}}
    (directory / "config.json").write_text(json.dumps({"model_type": "bart", "task_specific_params": tasks}))
    assert TranslationLanguages.from_checkpoint(directory, "bart", tokenizer).match(None, None).prefix == "fr: "


@pytest.mark.parametrize(
    ("connecting", "setting", "expected"),
    [
        ({"de"}, "auto", "de"),
        ({"de", "es"}, "auto", None),
        ({"de", "en", "es"}, "auto", "en"),
        (set(), "auto", None),
        ({"de", "en"}, "de", "de"),
        ({"en"}, "de", None),
        ({"en"}, "off", None),
    ],
)
def test_the_pivot_language(connecting: set[str], setting: str, expected: str | None) -> None:
    assert chosen_pivot(connecting, setting) == expected


def test_pairs_through_a_pivot_language() -> None:
    def pair(source: str, target: str) -> TranslationLanguages:
        sides = [(code, parse_language(code)) for code in (source, target)]
        return TranslationLanguages([Offer((Source(*sides[0]),), (Target(*sides[1]),))])

    checkpoints = [pair(*codes) for codes in (("deu", "en"), ("en", "fra"), ("en", "pt-BR"), ("fra", "de"))]
    found = pivoted_pairs(checkpoints, "auto")
    assert found == {("de", "fr"): "en", ("de", "pt"): "en", ("en", "de"): "fr", ("fr", "en"): "de"}
    assert pivoted_pairs(checkpoints, "off") == {}
    assert connecting_languages(checkpoints, "de-AT", "fr_FR") == ["en"]
    assert connecting_languages(checkpoints, "de", "es") == connecting_languages(checkpoints, "xx-", "fr") == []
    offered = {
        language.code: (language.targets, language.direct) for language in offered_languages(checkpoints, "auto")
    }
    assert offered["de"] == (("en", "fr", "pt"), ("en",))


def test_codes_of_libretranslate() -> None:
    assert parse_language("zt") == Language("zh", "Hant") and parse_language("pb") == Language("pt", region="BR")
