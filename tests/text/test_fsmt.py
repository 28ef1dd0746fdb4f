"""The tokenizer of FSMT equals transformers', which splits and joins words with sacremoses."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("sacremoses")

from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer
from transformers import FSMTTokenizer

from server.text.languages.languages import TranslationLanguages
from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.moses.join import WordJoiner
from server.text.tokenizers.moses.tables import WordTables
from server.text.tokenizers.moses.words import WordSplitter
from server.text.tokens.token_bytes import NoTokenBytes
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS, TORTURE

TEXTS = [
    *TORTURE,
    *CORPUS[:40],
    "Machine learning is great, isn't it?",
    "Машинное обучение - это здорово, не так ли?",
    "Dr. Smith lives at No. 5 Main St., e.g. near the U.S. embassy.",
    "It costs $1,234.56 (about 1.100,50 €) — or £900…",
    "„Guten Tag“, sagte er, «bonjour» dit-elle; it's 5 o'clock.",
    "A.B.C. and so on ... wait.... what.. no.",
    "state-of-the-art well-known -5 --- a-b-c 3-4",
    "Art. 5 Nr. 7 S. 12 z.B. usw. Prof. Dr. Müller, d.h. am 3. Mai.",
    "He said \"yes\". \"No\", she said. 'ok' the boys' toys, rock 'n' roll",
    "x,y 1,2 a,1 2,b , ,, 12,",
    "100 % 5 ºC nº 3 ?! ¿qué? ¡no! [a] {b} <c> a|b & c",
    "https://example.com/a?b=c&d=e user@host.org #tag @name",
    "И.И. Иванов, 1990 г. рожд., ул. Ленина, д. 5, кв. 3.",
    "ends with a quote and dot.'",
    "1.5 .5 5. a. b.c. Mr. smith Mr. Smith No. 7 No. seven",
    "﻿bom soft\u00adhyphen zero\u200bwidth \u202eright\u202c",
    "．。 、，：？（）％",
    "हिन्दी में पाठ। বাংলা لغة",
    "ÀÉÎ ǅ ß İstanbul ΑΣ ΟΔΟΣ",
]
WORDS = """
the boys &apos; &quot; &apos;s l&apos; eau ? , . ( ) [ $ € % @-@ 日本 語 &amp; it&apos;s „ “ ` -- l' 's ' " ; : { 5
"""
LANGUAGES = ("en", "de", "ru", "fr", "it", "ga", "es", "fi", "ko", "zh", "xx")


@pytest.fixture(
    scope="module", params=[("en", "ru"), ("ru", "en"), ("de", "en"), ("en", "de"), ("fr", "it")], ids="-".join
)
def directory(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoints.write_fsmt(tmp_path_factory.mktemp("fsmt"), request.param)


@pytest.fixture(scope="module")
def tokenizer(directory: Path) -> Tokenizer:
    return load_tokenizer(directory)


@pytest.fixture(scope="module")
def oracle(directory: Path) -> FSMTTokenizer:
    return FSMTTokenizer.from_pretrained(directory)


@pytest.mark.parametrize("offsets", [True, False])
def test_ids(tokenizer: Tokenizer, oracle: FSMTTokenizer, offsets: bool) -> None:
    for text, encoding in zip(TEXTS, tokenizer.encode(TEXTS, offsets=offsets), strict=True):
        assert encoding.ids == oracle(text).input_ids, text
    bare = tokenizer.encode(TEXTS, add_special_tokens=False, offsets=offsets)
    assert [encoding.ids for encoding in bare] == [oracle(text, add_special_tokens=False).input_ids for text in TEXTS]


def test_pairs(tokenizer: Tokenizer, oracle: FSMTTokenizer) -> None:
    (encoding,) = tokenizer.encode(["The old sailor"], pairs=["sees it."])
    assert encoding.ids == oracle("The old sailor", "sees it.").input_ids


@pytest.mark.parametrize("skip", [True, False])
def test_decoding(tokenizer: Tokenizer, oracle: FSMTTokenizer, skip: bool) -> None:
    chooser = random.Random(3)
    for _ in range(150):
        ids = [chooser.randrange(len(oracle)) for _ in range(chooser.randrange(1, 40))]
        expected = oracle.decode(ids, skip_special_tokens=skip)
        assert tokenizer.decode(ids, skip) == expected, ids
        stream, parts = tokenizer.stream(skip), list[str]()
        for index in ids:
            parts.append(stream.push(index))
            fork = stream.fork()
            fork.finish()
        assert "".join([*parts, stream.finish()]) == expected


def test_joined_tokens(tokenizer: Tokenizer, oracle: FSMTTokenizer) -> None:
    tokens = [oracle.decoder[index] for index in range(10, 200, 3)]
    assert tokenizer.join(tokens) == oracle.convert_tokens_to_string(tokens)


def test_special_tokens(tokenizer: Tokenizer, oracle: FSMTTokenizer) -> None:
    assert tokenizer.special_ids == frozenset(oracle.all_special_ids)
    for role in ("bos", "eos", "pad", "unk", "sep"):
        assert getattr(tokenizer.special, role) == getattr(oracle, f"{role}_token_id"), role
    assert tokenizer.vocab_size == len(oracle)
    for index in range(tokenizer.vocab_size):
        assert tokenizer.id_to_token(index) == oracle.decoder[index]
    assert tokenizer.token_to_id("sailor</w>") == oracle.encoder.get("sailor</w>")
    assert tokenizer.id_to_token(1 << 20) is None
    with pytest.raises(NoTokenBytes):
        _ = tokenizer.token_bytes


def test_places_are_those_of_the_words(tokenizer: Tokenizer) -> None:
    text = '  The "old" sailor — doesn\'t\tsee\u200b it…'
    (encoding,) = tokenizer.encode([text])
    words = [text[start:end] for start, end in dict.fromkeys(encoding.offsets[:-1])]
    assert [word for word in words if word.isalpha()][:3] == ["The", "old", "sailor"]
    assert {'"', "—", "…"} <= set(words) and "it" in words
    assert [start for start, _ in encoding.offsets[:-1]] == sorted(start for start, _ in encoding.offsets[:-1])
    assert encoding.special == [False] * (len(encoding.ids) - 1) + [True]


@pytest.mark.parametrize("language", LANGUAGES)
def test_words_of_every_language(language: str) -> None:
    ours, words = WordSplitter(WordTables.of(language), lower_case=False), MosesTokenizer(language)
    punctuation, reference = MosesPunctNormalizer(language), FSMTTokenizer.moses_pipeline
    for text in TEXTS:
        normal = reference(Pipeline(punctuation), text, language)
        expected = words.tokenize(normal, aggressive_dash_splits=True, return_str=False, escape=True)
        assert [word for word, _, _ in ours.words(text, located=True)] == expected, text
        assert [word for word, _, _ in ours.words(text, located=False)] == expected, text


class Pipeline:
    """A stand-in for transformers' FSMTTokenizer, for one language."""

    def __init__(self, punctuation: MosesPunctNormalizer) -> None:
        self._punctuation = punctuation

    def moses_punct_norm(self, text: str, lang: str) -> str:
        return self._punctuation.normalize(text)


@pytest.mark.parametrize("language", LANGUAGES)
def test_texts_of_every_language(language: str) -> None:
    joiner, reference = WordJoiner(WordTables.of(language)), MosesDetokenizer(language)
    chooser = random.Random(5)
    pieces = WORDS.split()
    for _ in range(400):
        words = [chooser.choice(pieces) for _ in range(chooser.randrange(1, 12))]
        step = joiner.step()
        text = "".join(map(step.push, " ".join(words))) + step.finish()
        assert text.strip() == reference.detokenize(words), words


def test_lower_case(tmp_path: Path) -> None:
    directory = checkpoints.write_fsmt(tmp_path, do_lower_case=True)
    ours, reference = load_tokenizer(directory), FSMTTokenizer.from_pretrained(directory)
    for text, encoding in zip(TEXTS, ours.encode(TEXTS), strict=True):
        assert encoding.ids == reference(text).input_ids, text


def test_the_files_name_the_languages(tmp_path: Path) -> None:
    directory = checkpoints.write_fsmt(tmp_path)
    languages = TranslationLanguages.from_checkpoint(directory, "fsmt", load_tokenizer(directory))
    assert languages.pairs() == [("en", "ru")]
    (directory / "tokenizer_config.json").write_text('{"langs": ["en"]}')
    (directory / "config.json").write_text('{"model_type": "fsmt"}')
    with pytest.raises(TokenizerError, match="langs"):
        load_tokenizer(directory)


def test_czech_texts_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TokenizerError, match="Czech"):
        load_tokenizer(checkpoints.write_fsmt(tmp_path, ("en", "cs")))
    load_tokenizer(checkpoints.write_fsmt(tmp_path, ("cs", "en")))


@pytest.mark.parametrize("name", ["vocab-src.json", "vocab-tgt.json", "merges.txt"])
@pytest.mark.parametrize("content", [None, b"{}", b"\xff one"])
def test_errors_name_the_file(tmp_path: Path, name: str, content: bytes | None) -> None:
    directory = checkpoints.write_fsmt(tmp_path)
    (directory / name).unlink()
    if content is not None:
        (directory / name).write_bytes(content + b"\n")
    with pytest.raises(TokenizerError) as error:
        load_tokenizer(directory)
    assert name in str(error.value) and "\n" not in str(error.value)


def test_long_words_and_runs_take_time_that_grows_with_their_length() -> None:
    """The time is linear in the length. Some releases of sacremoses take minutes for such texts."""
    splitter = WordSplitter(WordTables.of("de"), lower_case=False)
    for text in ("." * 200_000, " " * 200_000 + "x", "a.b. " * 40_000, "'" * 100_000, '."' * 50_000):
        words = list(splitter.words(text, located=True))
        assert words[0][0] and words[-1][2] <= len(text)


def test_a_vocabulary_of_other_values_is_refused(tmp_path: Path) -> None:
    directory = checkpoints.write_fsmt(tmp_path)
    (directory / "vocab-tgt.json").write_text('{"a": "b"}')
    with pytest.raises(TokenizerError, match=r"vocab-tgt\.json is damaged: not a table"):
        load_tokenizer(directory)


def test_without_the_package_the_message_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("server.text.tokenizers.moses.tables.find_spec", lambda name: None)
    WordTables.of.cache_clear()
    with pytest.raises(TokenizerError, match=r"pip install 'triptych\[moses\]'"):
        load_tokenizer(checkpoints.write_fsmt(tmp_path))


def test_no_text_has_more_tokens_than_its_bound(tokenizer: Tokenizer) -> None:
    characters = "ab. !'1\n-é中😀\u0130\"`&|<>[]…—«»„“”’‘【〈，。％\u00a0(),%:;@#"
    draw = random.Random(3)
    texts = [*(character * 9 for character in characters), *(f"a{character}b" * 5 for character in characters), *TEXTS]
    texts += ["".join(draw.choices(characters, k=draw.randint(0, 40))) for _ in range(200)]
    for text, encoding in zip(texts, tokenizer.encode(texts, add_special_tokens=False, offsets=False), strict=True):
        assert len(encoding.ids) <= tokenizer.token_bound(text), ascii(text)
    assert tokenizer.token_bound("word " * 100) <= 500


@pytest.mark.parametrize("name", ["vocab-src.json", "vocab-tgt.json"])
@pytest.mark.parametrize("entry", [("far", 1 << 30), ("x" * 5000, 500)], ids=["id", "length"])
def test_vocabularies_are_bounded(tmp_path: Path, name: str, entry: tuple[str, int]) -> None:
    directory = checkpoints.write_fsmt(tmp_path)
    content = json.loads((directory / name).read_text())
    (directory / name).write_text(json.dumps({**content, entry[0]: entry[1]}))
    with pytest.raises(TokenizerError, match=rf"{name} has .* the limit is"):
        load_tokenizer(directory)
