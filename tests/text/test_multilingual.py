"""Token ids of source texts equal transformers for mBART, mBART-50, NLLB and M2M100 in all languages."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from pathlib import Path

import pytest
import sentencepiece
from transformers import AutoTokenizer, MBart50Tokenizer
from transformers.models.m2m_100.tokenization_m2m_100 import FAIRSEQ_LANGUAGE_CODES as M2M_100_CODES
from transformers.models.mbart.tokenization_mbart import FAIRSEQ_LANGUAGE_CODES as MBART_CODES
from transformers.models.mbart50.tokenization_mbart50 import FAIRSEQ_LANGUAGE_CODES as MBART_50_CODES
from transformers.models.nllb.tokenization_nllb import FAIRSEQ_LANGUAGE_CODES as NLLB_CODES

from server.text.languages.language_codes import Language, parse_language
from server.text.languages.languages import TranslationLanguages, UnknownPair
from server.text.tokenizers.fairseq import LANGUAGES
from server.text.tokenizers.load import load_tokenizer
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS, TORTURE

PLAIN = [text for text in TORTURE if unicodedata.normalize("NFKC", text) == text and text.isprintable()]
WRITERS = {
    "mbart": lambda directory: checkpoints.write_mbart(directory),
    "mbart50": lambda directory: checkpoints.write_mbart(directory, "MBart50"),
    "m2m100": checkpoints.write_m2m_100,
    "m2m100-unlisted": lambda directory: checkpoints.write_m2m_100(directory, listed=False),
    "nllb": checkpoints.write_nllb,
    "nllb-legacy": lambda directory: checkpoints.write_nllb(directory, legacy_behaviour=True),
}
TESTED_LANGUAGES = {
    "mbart": ["en_XX", "ro_RO", "zh_CN"],
    "mbart50": ["en_XX", "sl_SI"],
    "m2m100": ["en", "zu", "ast"],
    "m2m100-unlisted": ["fr"],
    "nllb": ["eng_Latn", "zul_Latn"],
    "nllb-legacy": ["fra_Latn"],
}
CASES = [(kind, code) for kind, codes in TESTED_LANGUAGES.items() for code in codes]


@pytest.fixture(scope="module")
def directories(tmp_path_factory):
    made: dict[str, Path] = {}

    def get(kind: str) -> Path:
        if kind not in made:
            made[kind] = WRITERS[kind](tmp_path_factory.mktemp(kind))
        return made[kind]

    return get


def reference(directory: Path, code: str | None = None):
    return AutoTokenizer.from_pretrained(directory, **({} if code is None else {"src_lang": code}))


def languages_of(directory: Path):
    tokenizer = load_tokenizer(directory)
    family = json.loads((directory / "config.json").read_text())["model_type"]
    return tokenizer, TranslationLanguages.from_checkpoint(directory, family, tokenizer)


def source_ids(directory: Path, code: str, texts: list[str]) -> list[list[int]]:
    """Token ids of the encoder's input for texts with a source language code."""
    tokenizer, languages = languages_of(directory)
    other = next(name for name, _ in languages.pairs() if name not in (code, "mul"))
    prompt = languages.match(code, other)
    encodings = tokenizer.encode(texts, add_special_tokens=False)
    return [[*prompt.leading_source_ids, *encoding.ids, *prompt.trailing_source_ids] for encoding in encodings]


@pytest.mark.parametrize(("kind", "code"), CASES)
def test_source_texts_equal_the_reference(directories, kind: str, code: str):
    # transformers 5 drops mBART's normaliser, so only texts that it does not change are compared here.
    texts = (PLAIN if kind == "mbart" else TORTURE) + CORPUS[:20]
    directory = directories(kind)
    oracle = reference(directory, code)
    assert source_ids(directory, code, texts) == [oracle(text).input_ids for text in texts]
    _, languages = languages_of(directory)
    wrong = next(name for name, _ in languages.pairs() if name not in (code, "mul"))
    assert source_ids(directory, wrong, texts) != [oracle(text).input_ids for text in texts]


def test_mbart_normalises_like_its_sentencepiece_model(directories):
    directory = directories("mbart")
    model = sentencepiece.SentencePieceProcessor(model_file=str(directory / "sentencepiece.bpe.model"))
    texts = [text for text in TORTURE if not any(mark in text for mark in ("</s>", "<mask>"))] + CORPUS
    ours = load_tokenizer(directory).encode(texts, add_special_tokens=False)
    # The unknown piece is 0 in SentencePiece and 3 in fairseq; all other ids are one higher in fairseq.
    assert [encoding.ids for encoding in ours] == [
        [index + 1 if index else 3 for index in model.encode(text)] for text in texts
    ]
    oracle = reference(directory)
    wide = next(text for text in TORTURE if text.startswith("ＦＵＬＬ"))
    assert oracle(wide, add_special_tokens=False).input_ids != load_tokenizer(directory).encode([wide])[0].ids[:-2]


@pytest.mark.parametrize("kind", WRITERS)
def test_the_default_source_language_is_the_checkpoints(directories, kind: str):
    directory = directories(kind)
    texts = PLAIN + CORPUS[:5]
    assert [encoding.ids for encoding in load_tokenizer(directory).encode(texts)] == reference(directory)(
        texts
    ).input_ids


def test_the_source_language_of_the_configuration_is_used(tmp_path: Path):
    directory = checkpoints.write_nllb(tmp_path, src_lang="deu_Latn")
    ids = load_tokenizer(directory).encode(CORPUS[:3])
    assert [encoding.ids for encoding in ids] == reference(directory)(CORPUS[:3]).input_ids
    assert ids[0].ids[0] == load_tokenizer(directory).token_to_id("deu_Latn") and ids[0].special[0]


@pytest.mark.parametrize("kind", WRITERS)
@pytest.mark.parametrize("skip", [True, False])
def test_decoding_equals_the_reference(directories, kind: str, skip: bool):
    directory = directories(kind)
    ours, oracle = load_tokenizer(directory), reference(directory)
    language = next(iter(ours.special_ids - {ours.token_to_id(token) for token in ("<s>", "</s>", "<pad>", "<unk>")}))
    chooser = random.Random(5)
    known = [ours.token_to_id(token) for token in oracle.get_vocab()]
    for text in [*CORPUS[:15], *TORTURE]:
        ids = [2, language, *ours.encode([text], add_special_tokens=False)[0].ids, 2]
        mixed = [chooser.choice([index for index in known if index is not None]) for _ in range(12)]
        for completion in (ids, mixed):
            expected = oracle.decode(completion, skip_special_tokens=skip)
            if kind == "m2m100-unlisted" and skip:
                # transformers decodes language tokens that the files do not list as special. We never show them.
                expected = oracle.decode([i for i in completion if i not in ours.special_ids], skip_special_tokens=True)
            assert ours.decode(completion, skip) == expected
            stream = ours.stream(skip)
            assert "".join([*map(stream.push, completion), stream.finish()]) == expected


@pytest.mark.parametrize("kind", ["mbart", "mbart50", "nllb"])
def test_files_saved_by_the_reference_give_the_same_ids(directories, tmp_path: Path, kind: str):
    code = TESTED_LANGUAGES[kind][-1]
    oracle = reference(directories(kind), code)
    oracle.save_pretrained(tmp_path)
    (tmp_path / "config.json").write_text((directories(kind) / "config.json").read_text())
    saved = reference(tmp_path, code)
    texts = PLAIN + CORPUS[:10]
    assert source_ids(tmp_path, code, texts) == saved(texts).input_ids == oracle(texts).input_ids


def test_language_tokens_of_mbart_and_mbart_50(directories):
    first, second = (languages_of(directories(kind))[1].match("en_XX", "ro_RO") for kind in ("mbart", "mbart50"))
    tokenizer = load_tokenizer(directories("mbart"))
    english, romanian = tokenizer.token_to_id("en_XX"), tokenizer.token_to_id("ro_RO")
    assert (first.leading_source_ids, first.trailing_source_ids) == ((), (2, english))
    assert (first.decoder_start_ids, first.forced_bos_id) == ((romanian,), None)
    assert (second.trailing_source_ids, second.decoder_start_ids) == ((2,), None)
    oracle = MBart50Tokenizer.from_pretrained(directories("mbart50"))
    assert second.leading_source_ids == (oracle.convert_tokens_to_ids("en_XX"),)
    assert second.forced_bos_id == oracle.convert_tokens_to_ids("ro_RO")


@pytest.mark.parametrize(
    ("name", "kind", "target"),
    [("decoder_start_token_id", "MBart", "ro_RO"), ("forced_bos_token_id", "MBart50", "en_XX")],
)
@pytest.mark.parametrize("file", ["config", "generation_config"])
def test_a_configured_target_is_the_only_one(tmp_path: Path, name: str, kind: str, target: str, file: str):
    directory = checkpoints.write_mbart(tmp_path, kind)
    token_id = load_tokenizer(directory).token_to_id(target)
    config = json.loads((directory / "config.json").read_text()) if file == "config" else {}
    (directory / f"{file}.json").write_text(json.dumps({**config, name: token_id}))
    _, languages = languages_of(directory)
    assert {code for _, code in languages.pairs()} == {target}
    assert languages.match("de", None).target_lang == target
    with pytest.raises(UnknownPair, match=f"de_DE-{target}"):
        languages.match("de", "fi")


def test_blenderbot_texts_end_with_the_end_token(tmp_path: Path):
    """Without `tokenizer.json`, transformers 5 omits the end token. Triptych adds it, as transformers 4 did."""
    directory = checkpoints.write_byte_level(tmp_path, "roberta")
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "BlenderbotTokenizer"}))
    ours, oracle = load_tokenizer(directory), reference(directory)
    for text in [*TORTURE, *CORPUS[:5]]:
        assert ours.encode([text])[0].ids == [*oracle(text).input_ids, ours.special.eos]
        assert ours.decode(oracle(text).input_ids) == oracle.decode(oracle(text).input_ids, skip_special_tokens=True)


def test_language_lists_equal_transformers():
    assert list(LANGUAGES["mbart"]) == MBART_CODES and list(LANGUAGES["mbart50"]) == MBART_50_CODES
    assert {kind: list(LANGUAGES[kind]) for kind in ("m2m100", "wmt21")} == M2M_100_CODES


@pytest.mark.parametrize(
    ("kind", "codes", "token"),
    [
        ("nllb", ["zh-TW", "zh-Hant", "zho_Hant", "zh_HK", "cmn_Hant"], "zho_Hant"),
        ("nllb", ["zh", "zho", "chi", "zh-CN", "zh_CN", "zho_Hans", "zh-Hans-SG", "cmn"], "zho_Hans"),
        ("nllb", ["de", "deu", "ger", "de-AT", "deu_Latn", "de_DE"], "deu_Latn"),
        ("nllb", ["ar", "ara", "ar-EG", "arb_Arab", "ar_AR"], "arb_Arab"),
        ("mbart50", ["zh", "zho", "zh-CN", "zho_Hans", "zh_CN"], "zh_CN"),
        ("mbart50", ["en", "eng", "en-GB", "eng_Latn", "en_XX"], "en_XX"),
        ("m2m100", ["fr", "fra", "fre", "fr-CA", "fra_Latn", "fr_XX"], "__fr__"),
        ("m2m100", ["nso", "ns", "nso_Latn"], "__ns__"),
        ("m2m100", ["ceb", "ceb_Latn"], "__ceb__"),
    ],
)
def test_codes_of_all_notations_select_the_language_token(directories, kind: str, codes: list[str], token: str):
    tokenizer, languages = languages_of(directories(kind))
    for code in codes:
        assert languages.match("sr" if kind == "nllb" else "hi", code).forced_bos_id == tokenizer.token_to_id(token), (
            code
        )


@pytest.mark.parametrize(
    ("kind", "pair"),
    [("mbart50", ("en", "zho_Hant")), ("nllb", ("en", "sr-ME")), ("nllb", ("en", "fi")), ("m2m100", ("en", "xx"))],
)
def test_the_error_for_an_unknown_pair_lists_the_languages(directories, kind: str, pair: tuple[str, str]):
    _, languages = languages_of(directories(kind))
    listed = {"mbart50": "ar_AR, cs_CZ.* 22 more", "nllb": "eng_Latn, .* zul_Latn$", "m2m100": "af, am.* 70 more"}
    with pytest.raises(
        UnknownPair, match=f"this translation is not offered: this model translates between {listed[kind]}"
    ):
        languages.match(*pair)


def test_equal_languages_copy_and_missing_ones_are_errors(directories):
    _, languages = languages_of(directories("nllb"))
    assert languages.match("zh-TW", "zh-CN").target_lang == "zho_Hans"
    assert languages.match("en-GB", "en-US").copies and not languages.match("zh-TW", "zh-CN").copies
    for source, target, missing in (("en", None, "target_lang"), (None, "fr", "source_lang")):
        with pytest.raises(UnknownPair, match=f"^`{missing}` is required"):
            languages.match(source, target)


@pytest.mark.parametrize(
    "codes", [NLLB_CODES, MBART_50_CODES, M2M_100_CODES["m2m100"]], ids=["nllb", "mbart50", "m2m100"]
)
def test_every_code_matches_its_own_language_best(codes: list[str]):
    """Each code in a list of language codes matches its own entry better than any other entry."""
    offered = [parse_language(code) for code in codes]
    assert all(isinstance(language, Language) for language in offered)
    for language, other in itertools.permutations(offered, 2):
        assert language.fits(language) > language.fits(other), (language, other)
