"""The tokenizer in a GGUF file gives the same ids and texts as the tokenizer from which it was converted."""

from __future__ import annotations

import json
import re
from pathlib import Path

import gguf
import pytest
import sentencepiece
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from server.text.chats.chat import read_templates
from server.text.tokenizers.gguf_pre_tokenizers import PRE_TOKENIZERS
from server.text.tokenizers.load import load_tokenizer
from server.text.tokenizers.sentencepiece_model import SentencePieceModel
from server.text.tokenizers.tokenizer_files import read_tokenizer_files
from server.text.tokens.tokenizer import TokenizerError
from tests.text.checkpoints import (
    CORPUS,
    TORTURE,
    write_bert,
    write_llama,
    write_sentencepiece_llama,
    write_xlm_roberta,
)

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = (
    gguf.TokenType[name] for name in ("NORMAL", "UNKNOWN", "CONTROL", "USER_DEFINED", "UNUSED", "BYTE")
)
_GPT4 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_DIGITS_OF_FALCON = [
    pre_tokenizers.Punctuation("contiguous"),
    pre_tokenizers.ByteLevel(add_prefix_space=False),
    pre_tokenizers.Digits(individual_digits=False),
    pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), "isolated"),
]


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_O200K = (
    rf"[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}%s]*[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}%s]+{_CONTRACTIONS}?"
    rf"|[^\r\n\p{{L}}\p{{N}}]?[\p{{Lu}}\p{{Lt}}\p{{Lm}}\p{{Lo}}\p{{M}}%s]+[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}%s]*{_CONTRACTIONS}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n%s]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN35 = r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SEED = r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"
_DEEPSEEK = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _split(*patterns: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    splits = [pre_tokenizers.Split(Regex(pattern), "isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, byte_level])


BYTE_LEVEL = {
    "gpt-2": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "olmo": (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "llama-bpe": (None, _split(_GPT4 % "{1,3}")),
    "qwen2": (normalizers.NFC(), _split(_GPT4 % "")),
    "starcoder": (
        None,
        pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        ),
    ),
    "falcon": (None, pre_tokenizers.Sequence(_DIGITS_OF_FALCON)),
    "gpt-4o": (None, _split(_O200K % ("", "", "", "", "/"))),
    "kimi-k2": (None, _split(r"[\p{Han}]+|" + _O200K % (*[r"&&[^\p{Han}]"] * 4, ""))),
    "qwen35": (normalizers.NFC(), _split(_CONTRACTIONS + _QWEN35)),
    "seed-coder": (None, _split(_CONTRACTIONS + _SEED)),
    "deepseek-v3": (None, _split(r"\p{N}{1,3}", "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", _DEEPSEEK)),
    "deepseek-coder": (
        None,
        pre_tokenizers.Sequence(
            [
                *(
                    pre_tokenizers.Split(Regex(pattern), "isolated")
                    for pattern in ("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+")
                ),
                pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
    ),
    "modern-bert": (normalizers.NFC(), pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "exaone4": (None, pre_tokenizers.ByteLevel(add_prefix_space=False)),
    "deepseek-llm": (
        None,
        _split(
            "[\r\n]",
            r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-Ֆ]+",
            r"\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+",
            r"\s+$",
            "[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+",
            r"\p{N}+",
        ),
    ),
    "bailingmoe": (
        None,
        _split(
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
        ),
    ),
    "tiny_aya": (None, _split(r"\d{1,3}(?=(?:\d{3})*\b)", _O200K % ("", "", "", "", "/"))),
    "superbpe": (None, _split(r"\p{N}+", r"(?=(\d{3})+(?!\d))")),
    "bloom": (None, _split(r" ?[^(\s|[.,!?…。，、।۔،])]+")),
}
"""Normaliser and pre-tokenizer in a published `tokenizer.json`, by the name that the converter gives them in GGUF."""


def write_vocabulary(path, model, tokens, types, change=lambda writer: None, architecture="llama", **more):
    """Write a GGUF file with a vocabulary and no tensors. more: values of `tokenizer.ggml.*`."""
    writer = gguf.GGUFWriter(path, architecture)
    writer.add_tokenizer_model(model)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for name, value in more.items():
        add = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}[
            type(value)
        ]
        add(f"tokenizer.ggml.{name}", value)
    change(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def byte_level(pre):
    """Train a byte-level tokenizer with the `tokenizers` library. Its special tokens have the highest ids."""
    backend = Tokenizer(models.BPE(ignore_merges=pre in ("llama-bpe", "gpt-4o", "kimi-k2")))
    normalizer, backend.pre_tokenizer = BYTE_LEVEL[pre]
    if normalizer is not None:
        backend.normalizer = normalizer
    backend.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend.train_from_iterator(
        [*CORPUS, *TORTURE], trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    backend.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    backend.add_tokens(["<think>"])
    return backend


def in_gguf(path, backend, pre, **more):
    """Write the GGUF file that the converter writes for a byte-level tokenizer. Two of its ids have no token."""
    size, added = backend.get_vocab_size() + 2, backend.get_added_tokens_decoder()
    kinds = {index: CONTROL if token.special else USER_DEFINED for index, token in added.items()}
    tokens = [backend.id_to_token(index) or f"[PAD{index}]" for index in range(size)]
    types = [kinds.get(index, NORMAL if backend.id_to_token(index) else UNUSED) for index in range(size)]
    merges = [" ".join(pair) for pair in json.loads(backend.to_str())["model"]["merges"]]
    eos = backend.token_to_id("<|im_end|>")
    return write_vocabulary(path, "gpt2", tokens, types, pre=pre, merges=merges, eos_token_id=eos, **more)


def assert_same(ours, encode, decode, texts=TORTURE):
    for text in texts:
        ids = encode(text)
        assert ours.encode([text], add_special_tokens=False)[0].ids == ids, text
        assert ours.decode(ids, skip_special_tokens=False) == decode(ids), text
        stream = ours.stream(skip_special_tokens=False)
        assert "".join([*map(stream.push, ids), stream.finish()]) == decode(ids), text


@pytest.mark.parametrize("pre", BYTE_LEVEL)
def test_byte_level(tmp_path, pre):
    theirs = byte_level(pre)
    ours = load_tokenizer(in_gguf(tmp_path / "model.gguf", theirs, pre))
    assert_same(
        ours,
        lambda text: theirs.encode(text, add_special_tokens=False).ids,
        lambda ids: theirs.decode(ids, skip_special_tokens=False),
        [*TORTURE, "<think>so<|im_end|>", "x<|im_end|>\n<|endoftext|> y"],
    )
    assert ours.vocab_size == theirs.get_vocab_size()
    assert ours.id_to_token(ours.vocab_size) is None
    assert ours.decode(theirs.encode("a<|im_end|>b<think>").ids) == "ab<think>"


def test_begin_and_end_tokens(tmp_path):
    theirs = byte_level("llama-bpe")
    begin, end = (theirs.token_to_id(token) for token in ("<|endoftext|>", "<|im_end|>"))
    ids = theirs.encode("A small frog").ids
    cases = {
        (("pre", "llama-bpe"),): [begin, *ids],
        (("pre", "llama-bpe"), ("add_bos_token", False)): ids,
        (("pre", "llama-bpe"), ("add_eos_token", True)): [begin, *ids, end],
    }
    for number, (settings, expected) in enumerate(cases.items()):
        more = {name: value for name, value in settings if name != "pre"}
        path = in_gguf(tmp_path / f"{number}.gguf", theirs, "llama-bpe", bos_token_id=begin, **more)
        assert load_tokenizer(path).encode(["A small frog"])[0].ids == expected


def test_gemma4(tmp_path):
    """Gemma 4 replaces spaces by `▁`, writes unknown characters as bytes, and merges newlines like other characters."""
    theirs = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    theirs.normalizer = normalizers.Replace(" ", "▁")
    theirs.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    special = ["<pad>", "<eos>", "<bos>", "<unk>"]
    pieces = [*special, *(f"<0x{byte:02X}>" for byte in range(256))]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=pieces, limit_alphabet=60, show_progress=False)
    theirs.train_from_iterator([*CORPUS, "a\n\n\nb\n\n  c"], trainer)
    tokens = [theirs.id_to_token(index) for index in range(theirs.get_vocab_size())]
    types = [UNKNOWN if token == "<unk>" else CONTROL if token in special else NORMAL for token in tokens]
    merges = [" ".join(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    more = {"bos_token_id": 2, "eos_token_id": 1, "add_bos_token": False, "merges": merges}
    ours = load_tokenizer(write_vocabulary(tmp_path / "model.gguf", "gemma4", tokens, types, **more))
    plain = Tokenizer.from_str(theirs.to_str())
    for text in [text for text in [*TORTURE, "x\n\n\n y", " lead"] if "<" not in text]:
        ids = plain.encode(text, add_special_tokens=False).ids
        (encoding,) = ours.encode([text])
        assert list(encoding.ids) == [2, *ids], text
        assert ours.decode(ids) == theirs.decode(ids, skip_special_tokens=False)


def test_the_page_names_the_pre_tokenizers():
    page = (Path(__file__).parents[2] / "docs" / "gguf.md").read_text()
    part = page.partition("## Pre-tokenizers")[2].partition("Another name")[0]
    listed = re.findall(r"`([^`]+)`", part.partition("it is known.")[2])
    assert listed == sorted(PRE_TOKENIZERS)


def test_an_unknown_pre_tokenizer_is_refused_by_name(tmp_path):
    path = in_gguf(tmp_path / "model.gguf", byte_level("gpt-2"), "klingon")
    with pytest.raises(TokenizerError, match="pre-tokenizer 'klingon' is not supported; the nearest name is viking"):
        load_tokenizer(path)
    write_vocabulary(path, "rwkv", ["a"], [NORMAL])
    with pytest.raises(TokenizerError, match="tokenizer 'rwkv' is not supported, only gpt2, llama, bert, t5, gemma4"):
        load_tokenizer(path)


@pytest.mark.parametrize(
    "change",
    [
        lambda merges: [*merges, "zz yy"],
        lambda merges: [*merges, "Q Z"],
        lambda merges: [*merges, "a b c"],
        lambda merges: [*merges, "abc"],
        lambda merges: [*merges, ""],
    ],
    ids=["a token outside", "a result outside", "three words", "one word", "no word"],
)
def test_a_merge_that_joins_no_tokens_is_one_line_with_its_place(tmp_path, change):
    theirs = byte_level("gpt-2")
    merges = [" ".join(pair) for pair in json.loads(theirs.to_str())["model"]["merges"]]
    tokens = [theirs.id_to_token(index) for index in range(theirs.get_vocab_size())]
    path = write_vocabulary(
        tmp_path / "model.gguf", "gpt2", tokens, [NORMAL] * len(tokens), pre="gpt-2", merges=change(merges)
    )
    place = f"model.gguf: merge {len(merges) + 1} of {len(merges) + 1} does not join two tokens"
    with pytest.raises(TokenizerError, match=place) as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value) and "zz" not in str(error.value)


@pytest.mark.parametrize("charsmap", [b"\x01\x02", b"\xff" * 40], ids=["short", "long"])
def test_a_damaged_normalizer_is_one_line(tmp_path, charsmap):
    """The library raises a plain Exception for a damaged normaliser. Our error is one line."""

    def change(writer):
        writer.add_token_scores([0.0, -1.0])
        writer.add_precompiled_charsmap(charsmap)

    path = write_vocabulary(tmp_path / "model.gguf", "t5", ["<unk>", "a"], [UNKNOWN, NORMAL], change)
    with pytest.raises(TokenizerError, match="damaged") as error:
        load_tokenizer(path)
    assert "\n" not in str(error.value)


def _pieces(path):
    model = sentencepiece.SentencePieceProcessor(model_file=str(path))
    kinds = {
        "IsUnknown": UNKNOWN,
        "IsControl": CONTROL,
        "IsUnused": UNUSED,
        "IsByte": BYTE,
    }
    indices = range(model.get_piece_size())
    types = [next((kind for name, kind in kinds.items() if getattr(model, name)(index)), NORMAL) for index in indices]
    return model, [model.id_to_piece(index) for index in indices], [model.get_score(index) for index in indices], types


def test_sentencepiece_bpe(tmp_path):
    model, tokens, scores, types = _pieces(write_sentencepiece_llama(tmp_path) / "tokenizer.model")
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = write_vocabulary(
        tmp_path / "model.gguf", "llama", tokens, types, lambda w: w.add_token_scores(scores), **roles
    )
    ours = load_tokenizer(path)
    texts = [text for text in TORTURE if not any(token in text for token in ("<s>", "</s>", "<unk>"))]
    for text in texts:
        assert ours.encode([text], add_special_tokens=False)[0].ids == model.encode(text), text
        assert ours.encode([text])[0].ids == [1, *model.encode(text)]
        assert ours.decode(model.encode(text)) == model.decode(model.encode(text)), text
    unprefixed = write_vocabulary(
        path, "llama", tokens, types, lambda w: w.add_token_scores(scores), add_space_prefix=False, **roles
    )
    # The original tokenizer adds a space before the text. Here, the text contains it.
    for text in texts:
        expected = model.encode(text) if text else [tokens.index("▁")]
        assert load_tokenizer(unprefixed).encode([f" {text}"], add_special_tokens=False)[0].ids == expected, text


def test_special_tokens_between_texts_of_llama_2(tmp_path):
    directory = write_llama(tmp_path / "hf")
    theirs = Tokenizer.from_file(str(directory / "tokenizer.json"))
    size = theirs.get_vocab_size()
    tokens = [theirs.id_to_token(index) for index in range(size)]
    types = [UNKNOWN, CONTROL, CONTROL, *[BYTE] * 256, *[NORMAL] * (size - 259)]
    scores = [0.0] * 259 + [-float(index) for index in range(size - 259)]
    roles = {"bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}
    path = write_vocabulary(
        tmp_path / "model.gguf", "llama", tokens, types, lambda w: w.add_token_scores(scores), **roles
    )
    texts = ["<s>The old sailor</s> sees<s>", "</s><s>", " <s> a", "The café</s>"]
    decode = lambda ids: theirs.decode(ids, skip_special_tokens=False)  # noqa: E731
    assert_same(load_tokenizer(path), lambda text: theirs.encode(text, add_special_tokens=False).ids, decode, texts)


@pytest.mark.parametrize("lower", [True, False])
def test_word_piece(tmp_path, lower):
    directory = write_bert(tmp_path / "hf", lower=lower)
    theirs = load_tokenizer(directory)
    words = (directory / "vocab.txt").read_text().splitlines()
    types = [CONTROL if word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") else NORMAL for word in words]
    tokens = [
        word if kind == CONTROL else word[2:] if word.startswith("##") else f"▁{word}"
        for word, kind in zip(words, types, strict=True)
    ]
    roles = {"unknown_token_id": 1, "bos_token_id": 2, "seperator_token_id": 3, "padding_token_id": 0}
    ours = load_tokenizer(write_vocabulary(tmp_path / "model.gguf", "bert", tokens, types, **roles))
    for text in TORTURE:
        one, other = (tokenizer.encode([text], pairs=["two houses!"])[0] for tokenizer in (ours, theirs))
        assert (one.ids, one.type_ids, one.special) == (other.ids, other.type_ids, other.special), text
        assert ours.decode(one.ids) == theirs.decode(one.ids)


def test_unigram_of_xlm_roberta(tmp_path):
    directory = write_xlm_roberta(tmp_path / "hf")
    theirs = load_tokenizer(directory)
    _, pieces, scores, _ = _pieces(directory / "sentencepiece.bpe.model")
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *pieces[3:], "<mask>"]
    types = [CONTROL, CONTROL, CONTROL, UNKNOWN, *[NORMAL] * (len(pieces) - 3), CONTROL]
    scores = [0.0] * 4 + scores[3:] + [0.0]
    charsmap = SentencePieceModel.read((directory / "sentencepiece.bpe.model").read_bytes(), "model").charsmap
    roles = {
        "bos_token_id": 0,
        "eos_token_id": 2,
        "unknown_token_id": 3,
        "padding_token_id": 1,
        "mask_token_id": len(tokens) - 1,
    }

    def change(writer):
        writer.add_token_scores(scores)
        writer.add_precompiled_charsmap(charsmap)

    path = write_vocabulary(
        tmp_path / "model.gguf", "t5", tokens, types, change, "bert", add_bos_token=True, add_eos_token=True, **roles
    )
    ours = load_tokenizer(path)
    for text in TORTURE:
        one, other = (tokenizer.encode([text], pairs=["two houses!"])[0] for tokenizer in (ours, theirs))
        assert one.ids == other.ids, text
        assert ours.decode(one.ids) == theirs.decode(one.ids)


def test_chat_templates(tmp_path):
    theirs = byte_level("qwen2")
    path = in_gguf(tmp_path / "model.gguf", theirs, "qwen2")
    assert read_templates(path, read_tokenizer_files(path)).by_name == {}
    one, two = "{{ messages[0].content }}", "{{ tools }}"

    def rewrite(template):
        eos, pre = theirs.token_to_id("<|im_end|>"), "qwen2"
        tokens = [theirs.id_to_token(index) for index in range(theirs.get_vocab_size())]
        types = [CONTROL if token.startswith("<|") else NORMAL for token in tokens]
        change = lambda writer: writer.add_chat_template(template)  # noqa: E731
        return write_vocabulary(path, "gpt2", tokens, types, change, pre=pre, eos_token_id=eos)

    templates = read_templates(rewrite(one), read_tokenizer_files(path))
    assert templates.by_name == {"default": one}
    assert templates.special_tokens == {"eos_token": "<|im_end|>"}
    named = [{"name": "default", "template": one}, {"name": "tool_use", "template": two}]
    assert read_templates(rewrite(named), read_tokenizer_files(path)).by_name == {"default": one, "tool_use": two}
