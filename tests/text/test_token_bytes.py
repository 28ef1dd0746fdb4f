"""The bytes of tokens: joined, they are the decoded text, and a stream of texts made from them splits no character."""

from __future__ import annotations

from pathlib import Path

import pytest

from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.detokenizer import IncrementalDetokenizer
from server.text.tokens.token_bytes import NoTokenBytes, TokenBytes, bytes_of_decoder
from server.text.tokens.tokenizer import Tokenizer
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS, TORTURE

TEXTS = [*CORPUS[:40], *(text for text in TORTURE if text == text.strip())]
KINDS = ["gpt2", "roberta", "llama", "t5", "marian"]
OPEN_WITH_SPACE = {"llama", "t5", "marian"}


@pytest.fixture(scope="module", params=KINDS)
def tokenizer(request, tmp_path_factory) -> Tokenizer:
    writers = {"llama": checkpoints.write_llama, "t5": checkpoints.write_t5, "marian": checkpoints.write_marian}
    directory = tmp_path_factory.mktemp(request.param)
    write = writers.get(request.param, lambda path: checkpoints.write_byte_level(path, request.param))
    return load_tokenizer(write(directory))


def known(tokenizer: Tokenizer, text: str) -> list[int] | None:
    """Token ids of a text without special tokens. None: the text has unknown tokens."""
    ids = tokenizer.encode([text], add_special_tokens=False)[0].ids
    return None if not ids or any(i in tokenizer.special_ids or i == tokenizer.special.unk for i in ids) else ids


def test_concatenated_bytes_equal_the_decoded_text(tokenizer: Tokenizer, request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params["tokenizer"]
    token_bytes = tokenizer.token_bytes
    assert token_bytes.opens_with_space == (name in OPEN_WITH_SPACE)
    assert len(token_bytes.by_id) == tokenizer.vocab_size and token_bytes is tokenizer.token_bytes
    seen = 0
    for text in TEXTS:
        ids = known(tokenizer, text)
        if ids is None:
            continue
        seen += 1
        joined = b"".join(token_bytes.by_id[i] for i in ids).decode()
        assert joined.removeprefix(" " if token_bytes.opens_with_space else "") == tokenizer.decode(ids)
        stream = IncrementalDetokenizer(tokenizer, token_bytes=token_bytes)
        pieces = [stream.push((i,)) for i in ids]
        assert "".join([*pieces, stream.finish()]) == tokenizer.decode(ids)
        assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)
    assert seen >= 25, "too few texts without unknown tokens"


def test_special_and_unknown_tokens_have_no_bytes(tokenizer: Tokenizer) -> None:
    tokens = tokenizer.token_bytes.by_id
    silent = tokenizer.special_ids | {tokenizer.special.unk} - {None}
    assert silent and not any(tokens[i] for i in silent)
    assert sum(bool(token) for token in tokens) >= len(tokens) - len(silent) - 1


def test_completion_after_a_prompt_keeps_its_leading_space(tokenizer: Tokenizer) -> None:
    if not tokenizer.token_bytes.opens_with_space:
        return
    (encoding,) = tokenizer.encode(["sees"], add_special_tokens=False, offsets=False)
    alone = IncrementalDetokenizer(tokenizer, token_bytes=tokenizer.token_bytes)
    after = IncrementalDetokenizer(tokenizer, token_bytes=tokenizer.token_bytes, prompt_ids=encoding.ids)
    assert after.push(encoding.ids) == " " + alone.push(encoding.ids) == " sees"


def test_special_tokens_show_only_when_not_skipped(tokenizer: Tokenizer) -> None:
    (special,) = sorted(tokenizer.special_ids)[:1]
    for skip, expected in ((True, ""), (False, tokenizer.id_to_token(special))):
        stream = IncrementalDetokenizer(tokenizer, token_bytes=tokenizer.token_bytes, skip_special_tokens=skip)
        assert stream.push([special]) == expected
    assert IncrementalDetokenizer(tokenizer, token_bytes=tokenizer.token_bytes).push([10**6]) == ""


def test_bytes_of_an_incomplete_character_are_held_back() -> None:
    stream = TokenBytes((b"", b"\xf0\x9f", b"\x98", b"\x80!"), False).stream(lambda _: None, drop_space=False)
    assert [stream.push(i) for i in (1, 2)] == ["", ""]
    fork = stream.fork()
    assert stream.push(3) == fork.push(3) == "😀!"


@pytest.mark.parametrize(
    ("token", "decoder", "expected"),
    [
        ("<0x0A>", {"type": "Sequence", "decoders": [{"type": "ByteFallback"}, {"type": "Fuse"}]}, b"\n"),
        ("<0x0A>", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never"}, b"<0x0A>"),
        ("▁a▁", {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always"}, b" a "),
        ("Ġé", {"type": "ByteLevel"}, b" \xe9"),
        ("two words", {"type": "ByteLevel"}, b"two words"),
    ],
)
def test_bytes_of_one_token(token: str, decoder: dict, expected: bytes) -> None:
    assert bytes_of_decoder(decoder)[0](token) == expected


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
def test_decoders_that_combine_tokens_have_no_token_bytes(decoder: dict | None) -> None:
    with pytest.raises(NoTokenBytes):
        bytes_of_decoder(decoder)


def test_word_piece_tokenizers_have_no_token_bytes(tmp_path: Path) -> None:
    with pytest.raises(NoTokenBytes):
        _ = load_tokenizer(checkpoints.write_bert(tmp_path)).token_bytes
