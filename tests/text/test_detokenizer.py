"""Decoding tokens in chunks gives the same text as decoding all at once, for any tokens and any chunks."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from server.text.tokenizers import marian
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens import streams
from server.text.tokens.detokenizer import IncrementalDetokenizer, StopStrings
from server.text.tokens.tokenizer import Tokenizer
from tests.text.checkpoints import CORPUS, TORTURE, write_marian

_text = st.text(
    st.one_of(
        st.sampled_from(" .,'!?ntsmve\n"),
        st.sampled_from("👍🏽👩‍👩‍👧🇫🇷日本語שלום\u0301\u200d\ufffdéÜ▁"),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=40,
)
_words = st.lists(st.sampled_from([*CORPUS, *TORTURE]), max_size=3).map(" ".join)
_quick = settings(max_examples=50, deadline=None)
"""Settings of property tests: 50 examples for each tokenizer."""


def _split(ids: list[int], cuts: list[int]) -> list[list[int]]:
    edges = sorted({0, len(ids), *(cut % (len(ids) + 1) for cut in cuts)})
    return [ids[start:end] for start, end in pairwise(edges)]


def _run(detokenizer: IncrementalDetokenizer, chunks: list[list[int]]) -> str:
    return "".join([detokenizer.push(chunk) for chunk in chunks]) + detokenizer.finish()


@_quick
@given(text=_text | _words, cuts=st.lists(st.integers(0, 1000), max_size=8), skip=st.booleans())
def test_chunks_concatenate_to_the_decoded_text(tokenizer: Tokenizer, text: str, cuts: list[int], skip: bool):
    ids = tokenizer.encode([text])[0].ids
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    assert _run(detokenizer, _split(ids, cuts)) == tokenizer.decode(ids, skip)


@_quick
@given(data=st.data(), skip=st.booleans())
def test_random_tokens_concatenate_to_their_decoding(tokenizer: Tokenizer, data: st.DataObject, skip: bool):
    ids = data.draw(st.lists(st.integers(0, tokenizer.vocab_size), max_size=30))
    detokenizer = IncrementalDetokenizer(tokenizer, skip_special_tokens=skip)
    assert _run(detokenizer, [[token_id] for token_id in ids]) == tokenizer.decode(ids, skip)


def test_a_tokenizer_remembers_few_decoded_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Decoded pieces of SentencePiece are remembered up to a limit. The texts are those of a new tokenizer."""
    monkeypatch.setattr(marian, "MAX_KNOWN", 8)
    directory = write_marian(tmp_path)
    tokenizer = load_tokenizer(directory)
    assert isinstance(tokenizer, marian.MarianTokenizer)
    for text in [*CORPUS, *TORTURE, *CORPUS]:
        ids = tokenizer.encode([text])[0].ids
        assert _run(IncrementalDetokenizer(tokenizer), [ids]) == load_tokenizer(directory).decode(ids)
        assert len(tokenizer._known) <= 8


@_quick
@given(data=st.data())
def test_invalid_bytes_concatenate_to_their_decoding(tokenizer: Tokenizer, data: st.DataObject):
    found = [tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256)]
    found += [tokenizer.token_to_id(character) for character in streams.byte_alphabet()]
    bytes_ = sorted({token_id for token_id in found if token_id is not None}) or [5, 6]
    ids = data.draw(st.lists(st.sampled_from(bytes_), max_size=24))
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert _run(detokenizer, [[token_id] for token_id in ids]) == tokenizer.decode(ids)


@_quick
@given(text=_text.filter(lambda text: "\ufffd" not in text))
def test_replacement_characters_appear_only_where_the_decoded_text_has_them(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode([text], add_special_tokens=False)[0].ids
    detokenizer = IncrementalDetokenizer(tokenizer)
    deltas = [detokenizer.push([token_id]) for token_id in ids] + [detokenizer.finish()]
    assert "\ufffd" in tokenizer.decode(ids) or not any("\ufffd" in delta for delta in deltas)


@_quick
@given(
    text=_words | _text,
    stop=st.lists(
        st.sampled_from(["s", "sai", "sailor sees", "the", " the caf", "é", "o h", "👍🏽", "..", "\n"]), max_size=4
    ),
    cuts=st.lists(st.integers(0, 1000), max_size=8),
    include=st.booleans(),
)
def test_text_ends_at_the_first_stop_string(
    tokenizer: Tokenizer, text: str, stop: list[str], cuts: list[int], include: bool
):
    ids = tokenizer.encode([text])[0].ids
    detokenizer = IncrementalDetokenizer(tokenizer, stop=stop, include_stop=include)
    result = _run(detokenizer, _split(ids, cuts))
    whole = tokenizer.decode(ids)
    ends = [(whole.index(string) + len(string), -len(string), string) for string in stop if string in whole]
    if not ends:
        assert result == whole and detokenizer.stopped is None
        return
    end, minus_length, string = min(ends)
    assert detokenizer.stopped == string
    assert result == whole[: end if include else end + minus_length]


@_quick
@given(text=_words, at=st.integers(0, 60))
def test_prompt_and_completion_concatenate_to_the_whole_text(tokenizer: Tokenizer, text: str, at: int):
    ids = tokenizer.encode([text], add_special_tokens=False)[0].ids
    prompt, completion = ids[:at], ids[at:]
    continued = _run(IncrementalDetokenizer(tokenizer, prompt_ids=prompt), [completion])
    whole, before = tokenizer.decode(ids), tokenizer.decode(prompt)
    if whole.startswith(before):
        assert before + continued == whole
    else:  # the completion changed the text of the prompt's last tokens
        assert whole.endswith(continued)


@pytest.mark.parametrize("text", [TORTURE[6], TORTURE[8], TORTURE[9], CORPUS[5] + TORTURE[6] + CORPUS[0]])
def test_a_prompt_may_end_at_any_token(tokenizer: Tokenizer, text: str):
    ids = tokenizer.encode([text], add_special_tokens=False)[0].ids
    whole = tokenizer.decode(ids)
    for at in range(len(ids) + 1):
        continued = _run(IncrementalDetokenizer(tokenizer, prompt_ids=ids[:at]), [[token_id] for token_id in ids[at:]])
        before = tokenizer.decode(ids[:at])
        if whole.startswith(before):
            assert before + continued == whole, at
        else:
            assert whole.endswith(continued), at


def test_completion_of_a_long_prompt(tokenizer: Tokenizer):
    ids = tokenizer.encode([CORPUS[0] * 20], add_special_tokens=False)[0].ids
    continued = _run(IncrementalDetokenizer(tokenizer, prompt_ids=ids[:-5]), [[token_id] for token_id in ids[-5:]])
    assert tokenizer.decode(ids).endswith(continued) and continued


def test_most_text_is_returned_before_the_end(tokenizer: Tokenizer):
    ids = tokenizer.encode([" ".join(CORPUS[:30])], add_special_tokens=False)[0].ids
    detokenizer = IncrementalDetokenizer(tokenizer)
    shown = [len(detokenizer.push([token_id])) for token_id in ids]
    assert len(detokenizer.finish()) <= 8
    assert sum(map(bool, shown)) > len(ids) / 2


@given(
    text=st.text("ab", max_size=60),
    stop=st.lists(st.text("ab", min_size=1, max_size=6), max_size=5),
    size=st.integers(1, 7),
    include=st.booleans(),
)
def test_stop_strings_that_overlap_themselves(text: str, stop: list[str], size: int, include: bool):
    stops = StopStrings(stop, include)
    pieces = [stops.push(text[start : start + size]) for start in range(0, len(text), size)]
    result = "".join(pieces) + stops.finish()
    ends = [(text.index(string) + len(string), -len(string), string) for string in stop if string in text]
    if not ends:
        assert (result, stops.found) == (text, None)
    else:
        end, minus_length, string = min(ends)
        assert (result, stops.found) == (text[: end if include else end + minus_length], string)


@given(text=st.text(" .'nt", max_size=40), cuts=st.lists(st.integers(0, 40), max_size=10))
def test_incremental_clean_up_equals_clean_up_of_the_whole_text(text: str, cuts: list[int]):
    chain = streams.DecoderChain([], streams.clean_up_steps())
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    pieces = [chain.push(text[start:end]) for start, end in pairwise(edges)]
    assert "".join(pieces) + chain.finish() == streams.clean_up(text)


def test_error_for_an_unknown_decoder_names_it():
    with pytest.raises(streams.UnknownDecoder, match="CTC"):
        streams.decoder_chain({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": True})


@pytest.mark.parametrize(
    "decoder",
    [
        None,
        {"type": "BPEDecoder", "suffix": "</w>"},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "never", "split": True},
        {"type": "WordPiece", "prefix": "##", "cleanup": False},
        {"type": "Sequence", "decoders": [{"type": "Strip", "content": "a", "start": 1, "stop": 2}, {"type": "Fuse"}]},
        {"type": "Sequence", "decoders": [{"type": "Fuse"}, {"type": "Strip", "content": "a", "start": 2, "stop": 3}]},
        {
            "type": "Sequence",
            "decoders": [
                {"type": "ByteFallback"},
                {"type": "Fuse"},
                {"type": "Replace", "pattern": {"String": "a "}, "content": "ab"},
            ],
        },
    ],
)
@given(
    tokens=st.lists(st.sampled_from(["abaa", "▁", "▁a▁", "##b", "b</w>", "aaaa", " ", "<0xE2>", "<0x82>", "<0xAC>"]))
)
def test_incremental_decoders_equal_the_tokenizers_library(decoder: dict | None, tokens: list[str]):
    import json

    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    names = ["abaa", "▁", "▁a▁", "##b", "b</w>", "aaaa", " ", "<0xE2>", "<0x82>", "<0xAC>"]
    state = json.loads(Backend(models.WordLevel({name: index for index, name in enumerate(names)}, "abaa")).to_str())
    backend = Backend.from_str(json.dumps(state | {"decoder": decoder}))
    tokens = ["abaa", "##b", *tokens]  # the library panics where less than `stop` characters are left
    chain = streams.decoder_chain(decoder)
    streamed = "".join([chain.push(token) for token in tokens]) + chain.finish()
    assert streamed == backend.decode([names.index(token) for token in tokens], skip_special_tokens=False)
