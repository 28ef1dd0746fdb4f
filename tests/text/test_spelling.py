"""Tokens in bytes: joined, they are what the tokenizer decodes to, and a stream of them is never cut in a character."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.text.detokenizer import IncrementalDetokenizer
from server.text.spelling import NoSpelling, Spelling, speller
from server.text.tokenizer import Tokenizer, load_tokenizer
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS, TORTURE

TEXTS = [*CORPUS[:40], *(text for text in TORTURE if text == text.strip())]
SPELLED = ["gpt2", "roberta", "llama", "t5", "marian"]
OPEN_WITH_SPACE = {"llama", "t5", "marian"}


@pytest.fixture(scope="module", params=SPELLED)
def spelled(request, tmp_path_factory) -> Tokenizer:
    writers = {"llama": checkpoints.write_llama, "t5": checkpoints.write_t5, "marian": checkpoints.write_marian}
    directory = tmp_path_factory.mktemp(request.param)
    write = writers.get(request.param, lambda path: checkpoints.write_byte_level(path, request.param))
    return load_tokenizer(write(directory))


def known(tokenizer: Tokenizer, text: str) -> list[int] | None:
    """Ids of a text without special tokens; None if a part of it is unknown."""
    ids = tokenizer.encode([text], add_special_tokens=False)[0].ids
    return None if not ids or any(i in tokenizer.special_ids or i == tokenizer.special.unk for i in ids) else ids


def test_joined_bytes_are_the_decoded_text(spelled: Tokenizer, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["spelled"]
    spelling = spelled.spelling
    assert spelling.opens_with_space == (name in OPEN_WITH_SPACE)
    assert len(spelling.tokens) == spelled.vocab_size and spelling is spelled.spelling
    seen = 0
    for text in TEXTS:
        ids = known(spelled, text)
        if ids is None:
            continue
        seen += 1
        joined = b"".join(spelling.tokens[i] for i in ids).decode()
        assert joined.removeprefix(" " if spelling.opens_with_space else "") == spelled.decode(ids)
        stream = IncrementalDetokenizer(spelled, spelling=spelling)
        pieces = [stream.push((i,)) for i in ids]
        assert "".join([*pieces, stream.finish()]) == spelled.decode(ids)
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert seen >= 25, "hardly a text shows anything"


def test_what_is_no_text_has_no_bytes(spelled: Tokenizer) -> None:
    tokens = spelled.spelling.tokens
    silent = spelled.special_ids | {spelled.special.unk} - {None}
    assert silent and not any(tokens[i] for i in silent)
    assert sum(bool(token) for token in tokens) >= len(tokens) - len(silent) - 1


def test_a_text_that_goes_on_keeps_its_space(spelled: Tokenizer) -> None:
    if not spelled.spelling.opens_with_space:
        return
    (encoding,) = spelled.encode(["sees"], add_special_tokens=False, offsets=False)
    alone = IncrementalDetokenizer(spelled, spelling=spelled.spelling)
    after = IncrementalDetokenizer(spelled, spelling=spelled.spelling, prompt_ids=encoding.ids)
    assert after.push(encoding.ids) == " " + alone.push(encoding.ids) == " sees"


def test_special_tokens_show_only_where_they_are_wanted(spelled: Tokenizer) -> None:
    (special,) = sorted(spelled.special_ids)[:1]
    for skip, expected in ((True, ""), (False, spelled.id_to_token(special))):
        stream = IncrementalDetokenizer(spelled, spelling=spelled.spelling, skip_special_tokens=skip)
        assert stream.push([special]) == expected
    assert IncrementalDetokenizer(spelled, spelling=spelled.spelling).push([10**6]) == ""


def test_bytes_within_a_character_wait_for_the_rest() -> None:
    stream = Spelling((b"", b"\xf0\x9f", b"\x98", b"\x80!"), False).stream(lambda _: None, drop_space=False)
    assert [stream.push(i) for i in (1, 2)] == ["", ""]
    fork = stream.fork()
    assert stream.push(3) == fork.push(3) == "😀!"


@pytest.mark.parametrize(
    ("token", "decoder", "spelled_as"),
    [
        ("<0x0A>", {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}, b"\n"),
        ("<0x0A>", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, b"<0x0A>"),
        ("▁a▁", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, b" a "),
        ("Ġé", {"type": "ByteLevel"}, b" \xe9"),
        ("two words", {"type": "ByteLevel"}, b"two words"),
    ],
)
def test_one_token(token: str, decoder: dict, spelled_as: bytes) -> None:
    assert speller(decoder)[0](token) == spelled_as


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 2, "stop": 0}]},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
    ],
)
def test_tokens_that_depend_on_each_other_have_no_spelling(decoder: dict | None) -> None:
    with pytest.raises(NoSpelling):
        speller(decoder)


def test_word_pieces_have_none(tmp_path: Path) -> None:
    with pytest.raises(NoSpelling):
        _ = load_tokenizer(checkpoints.write_bert(tmp_path)).spelling
