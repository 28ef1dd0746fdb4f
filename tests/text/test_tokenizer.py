"""All kinds of tokenizers equal transformers on difficult texts."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from tokenizers import AddedToken

from server import text as text_package
from server.text.tokenizers import fast
from server.text.tokenizers.added_tokens import add_in_order
from server.text.tokenizers.load import load_tokenizer
from server.text.tokens.tokenizer import Tokenizer, TokenizerError
from tests.text import checkpoints
from tests.text.checkpoints import CORPUS, TORTURE


@pytest.fixture(scope="module")
def oracle(tokenizer_directory: Path):
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(tokenizer_directory)


@pytest.fixture(scope="module")
def compared(tokenizer_directory: Path) -> list[str]:
    return [text for text in TORTURE if not ((tokenizer_directory / "tokenizer.model").exists() and loses_space(text))]


def loses_space(text: str) -> bool:
    """Whether transformers, with only a `tokenizer.model`, loses a space at the start or after a special token.

    test_sentencepiece.py compares such texts with the SentencePiece library.
    """
    return text.startswith((" ", "▁")) or "</s> " in text


@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_ids_equal_the_reference(tokenizer: Tokenizer, oracle, compared: list[str], add_special_tokens: bool):
    texts = compared + CORPUS[:20]
    ours = tokenizer.encode(texts, add_special_tokens=add_special_tokens)
    for text, encoding in zip(texts, ours, strict=True):
        assert encoding.ids == oracle(text, add_special_tokens=add_special_tokens).input_ids, text


def test_encoding_without_offsets_gives_the_same_ids(tokenizer: Tokenizer):
    slow, fast = (tokenizer.encode(TORTURE, offsets=offsets) for offsets in (True, False))
    assert [e.ids for e in slow] == [e.ids for e in fast]
    assert all(len(e.ids) == len(e.offsets) == len(e.special) == len(e.type_ids) for e in slow)
    assert all(e.offsets == [] for e in fast)


def test_pairs_equal_the_reference(tokenizer: Tokenizer, oracle, compared: list[str]):
    firsts, seconds = CORPUS[:8], compared[2:10]
    for encoding, first, second in zip(tokenizer.encode(firsts, pairs=seconds), firsts, seconds, strict=True):
        expected = oracle(first, second)
        assert encoding.ids == expected.input_ids
        if "token_type_ids" in expected:
            assert encoding.type_ids == expected.token_type_ids


def test_joined_tokens_equal_the_reference(tokenizer: Tokenizer, oracle):
    for text in CORPUS[:20]:
        (encoding,) = tokenizer.encode([text], add_special_tokens=False)
        tokens = oracle.convert_ids_to_tokens(encoding.ids)
        assert tokenizer.join(tokens) == oracle.convert_tokens_to_string(tokens)


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_equals_the_reference(tokenizer: Tokenizer, oracle, skip: bool):
    for encoding in tokenizer.encode(TORTURE + CORPUS[:20]):
        assert tokenizer.decode(encoding.ids, skip) == oracle.decode(encoding.ids, skip_special_tokens=skip)


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_random_ids_equals_the_reference(tokenizer: Tokenizer, oracle, skip: bool):
    generator = random.Random(7)
    for _ in range(100):
        ids = [generator.randrange(tokenizer.vocab_size) for _ in range(generator.randrange(1, 30))]
        assert tokenizer.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip), ids


def test_special_ids_equal_the_reference(tokenizer: Tokenizer, oracle):
    assert tokenizer.special_ids == frozenset(oracle.all_special_ids)
    for role in ("bos", "eos", "pad", "unk", "mask", "cls", "sep"):
        assert getattr(tokenizer.special, role) == getattr(oracle, f"{role}_token_id", None), role
    assert tokenizer.vocab_size == len(oracle)


def test_id_to_token_and_token_to_id_are_inverse(tokenizer: Tokenizer):
    for token_id in range(tokenizer.vocab_size):
        token = tokenizer.id_to_token(token_id)
        assert token is not None and tokenizer.token_to_id(token) == token_id
    assert tokenizer.id_to_token(tokenizer.vocab_size) is None
    assert tokenizer.token_to_id("no such token") is None


def test_offsets_are_places_in_the_original_text(tokenizer: Tokenizer):
    text = "The old sailor 👍 sees the café"
    encoding = tokenizer.encode([text])[0]
    inside = [
        (start, end) for (start, end), special in zip(encoding.offsets, encoding.special, strict=True) if not special
    ]
    assert all(0 <= start <= end <= len(text) for start, end in inside)
    assert text[inside[0][0]] == "T" and inside[-1][1] == len(text)
    assert any(text[start:end].strip() == "sailor" for start, end in inside) or len(inside) > 8


def test_offsets_equal_the_reference(tokenizer: Tokenizer, oracle, compared: list[str]):
    if not oracle.is_fast:
        slow = {"MarianTokenizer", "ByT5Tokenizer", "BlenderbotSmallTokenizer", "PLBartTokenizer"}
        assert type(oracle).__name__ in slow  # transformers has no offsets for these
        return
    for text, encoding in zip(compared, tokenizer.encode(compared), strict=True):
        assert list(encoding.offsets) == oracle(text, return_offsets_mapping=True).offset_mapping, text


@pytest.mark.parametrize(
    "settings",
    [
        {"add_bos_token": False},
        {"add_eos_token": True},
        {"add_prefix_space": False},
        {"legacy": True, "add_bos_token": True, "add_eos_token": True},
        {"pad_token": "<pad>", "bos_token": "<tool>"},
    ],
    ids=str,
)
def test_sentencepiece_llama_settings_equal_the_reference(tmp_path: Path, settings: dict):
    """The SentencePiece model has a user-defined symbol, `<tool>`, which is never split but is not special."""
    from transformers import AutoTokenizer

    directory = checkpoints.write_sentencepiece_llama(tmp_path, symbols=["<tool>"], **settings)
    ours, reference = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    for text in [*TORTURE, "The <tool> old <tool>  sailor<s>x</s>y"]:
        if loses_space(text):
            continue
        (encoding,) = ours.encode([text])
        assert encoding.ids == reference(text).input_ids, text
        for skip in (True, False):
            assert ours.decode(encoding.ids, skip) == reference.decode(encoding.ids, skip_special_tokens=skip)
            stream = ours.stream(skip)
            assert "".join(map(stream.push, encoding.ids)) + stream.finish() == ours.decode(encoding.ids, skip)


def test_deberta_ids_equal_sentencepiece(tmp_path: Path):
    """transformers 5 replaces the normaliser of the file by NFC, so it cannot be the reference here."""
    import sentencepiece

    directory = checkpoints.write_deberta_v2(tmp_path)
    tokenizer = load_tokenizer(directory)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spm.model"))
    for text in [*TORTURE, *CORPUS[:20]]:
        if "[" not in text:  # SentencePiece splits special tokens in a text
            (encoding,) = tokenizer.encode([text])
            assert encoding.ids == [1, *reference.encode(text), 2], text
    (pair,) = tokenizer.encode(["the frog"], pairs=["[MASK] café"])
    assert (tokenizer.special.mask, tokenizer.special.cls) == (tokenizer.vocab_size - 1, 1)
    assert pair.ids.count(tokenizer.special.mask) == 1 and set(pair.type_ids) == {0, 1}


@pytest.mark.parametrize("rule", ["nmt_nfkc", "identity"])
@pytest.mark.parametrize("kind", ["Albert", "BigBird"])
def test_albert_and_bigbird_ids_equal_sentencepiece(tmp_path: Path, kind: str, rule: str):
    """ALBERT keeps upper case and accents here.

    Texts that begin with `▁` are left out: like transformers, our tokenizer does not add a second `▁`.
    """
    import sentencepiece

    directory = checkpoints.write_bert_unigram(tmp_path, kind, rule, do_lower_case=False, keep_accents=True)
    tokenizer = load_tokenizer(directory)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    cls, sep = tokenizer.special.cls, tokenizer.special.sep
    assert (reference.id_to_piece(cls), reference.id_to_piece(sep)) == ("[CLS]", "[SEP]")
    texts = [text for text in [*TORTURE, *CORPUS[:20]] if not any(mark in text for mark in ("[", "<", "``", "''"))]
    texts = [text for text in texts if not text.startswith("▁")]
    assert len(texts) > 30
    for text in texts:
        (encoding,) = tokenizer.encode([text])
        assert encoding.ids == [cls, *reference.encode(text), sep], text
    (pair,) = tokenizer.encode(["the frog"], pairs=["[MASK] café"])
    assert pair.ids.count(tokenizer.special.mask) == 1 and set(pair.type_ids) == {0, 1}


def test_bigbird_pegasus_ids_equal_sentencepiece(tmp_path: Path):
    """The reference is SentencePiece, because transformers 5 cannot load this file alone.

    Texts with spaces at their ends are left out, because Pegasus keeps these spaces.
    """
    import sentencepiece

    directory = checkpoints.write_bigbird_pegasus(tmp_path)
    tokenizer = load_tokenizer(directory)
    reference = sentencepiece.SentencePieceProcessor(model_file=str(directory / "spiece.model"))
    texts = [text for text in [*TORTURE, *CORPUS[:20]] if text.strip() == text != "" and not set("[<▁") & set(text)]
    assert len(texts) > 30
    for text in texts:
        (encoding,) = tokenizer.encode([text])
        assert encoding.ids == [*reference.encode(text), 1], text
    (masked,) = tokenizer.encode(["a [MASK]"])
    assert tokenizer.special.mask == reference.piece_to_id("[MASK]") and tokenizer.special.mask in masked.ids


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": False}, {"keep_accents": True}], ids=str)
@pytest.mark.parametrize("kind", ["Albert", "BigBird"])
def test_albert_and_bigbird_ids_equal_the_reference(tmp_path: Path, kind: str, settings: dict):
    from transformers import AutoTokenizer

    directory = checkpoints.write_bert_unigram(tmp_path, kind, "identity", **settings)
    ours, reference = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    for text in ["The old sailor", "``doesn't'' like two  houses!", "CAFÉ (e-mails), мир 1,234"]:
        (encoding,) = ours.encode([text])
        assert encoding.ids == reference(text).input_ids, text
        assert ours.decode(encoding.ids) == reference.decode(encoding.ids, skip_special_tokens=True)
    for role in ("bos", "eos", "pad", "unk", "mask", "cls", "sep"):
        assert getattr(ours.special, role) == getattr(reference, f"{role}_token_id"), role
    # In published BigBird files, the mask token includes the space before it; transformers 5 ignores this here.
    (masked,) = ours.encode(["a [MASK]"])
    spaced = reference("a [MASK]").input_ids
    assert masked.ids == (spaced if kind == "Albert" else [*spaced[:-3], *spaced[-2:]])


@pytest.mark.parametrize("settings", [{}, {"do_lower_case": True}, {"split_by_punct": True}], ids=str)
def test_deberta_without_a_normaliser_equals_the_reference(tmp_path: Path, settings: dict):
    from transformers import AutoTokenizer

    directory = checkpoints.write_deberta_v2(tmp_path, rule="identity", **settings)
    ours = load_tokenizer(directory)
    reference = AutoTokenizer.from_pretrained(directory, tokenizer_class="DebertaV2Tokenizer")
    for text in ["The old sailor", "doesn't like two  houses!", "(parentheses) e-mails, [MASK] мир"]:
        (encoding,) = ours.encode([text])
        assert encoding.ids == reference(text).input_ids, text
        assert ours.decode(encoding.ids) == reference.decode(encoding.ids, skip_special_tokens=True)


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("gpt2", "tokenizer.model"),
        ("gpt2", "spiece.model"),
        ("roberta", "sentencepiece.bpe.model"),
        ("bert", "spm.model"),
    ],
)
def test_error_for_an_unsupported_sentencepiece_file_names_it(tmp_path: Path, kind: str, file: str):
    directory = checkpoints.write_xlm_roberta(tmp_path)
    (directory / "sentencepiece.bpe.model").rename(directory / file)
    (directory / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": kind}))
    with pytest.raises(TokenizerError, match=file):
        load_tokenizer(directory)


def test_truncation_and_padding_of_the_file_are_disabled(tmp_path: Path):
    from tokenizers import Tokenizer as Backend

    directory = checkpoints.write_llama(tmp_path)
    backend = Backend.from_file(str(directory / "tokenizer.json"))
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    backend.save(str(directory / "tokenizer.json"))
    (short, long) = load_tokenizer(directory).encode(["a", CORPUS[0] * 4])
    assert len(short.ids) < 64 and len(long.ids) > 4


def test_added_tokens_of_all_files_are_read(tmp_path: Path):
    from transformers import AutoTokenizer

    old = checkpoints.write_byte_level(tmp_path / "old", "gpt2")
    size = load_tokenizer(old).vocab_size
    (old / "added_tokens.json").write_text(json.dumps({"<tool>": size, "<end>": size + 1}))
    (old / "special_tokens_map.json").write_text(json.dumps({"pad_token": "<end>"}))
    new = checkpoints.write_byte_level(tmp_path / "new", "gpt2")
    flags = {"lstrip": True, "rstrip": False, "normalized": False, "single_word": False}
    table = {str(size): {"content": "<tool>", "special": True, **flags}}
    (new / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": table, "pad_token": "<tool>"}))
    for directory in (old, new):
        ours, reference = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
        text = "The old <tool> sees <end> "
        assert ours.encode([text])[0].ids == reference(text).input_ids
        assert ours.special.pad == reference.pad_token_id
        assert ours.decode(reference(text).input_ids) == reference.decode(
            reference(text).input_ids, skip_special_tokens=True
        )


@pytest.mark.parametrize("ends", [(True, False), (False, True), (True, True), (False, False)])
def test_begin_and_end_tokens_follow_the_configuration(tmp_path: Path, ends: tuple[bool, bool]):
    from transformers import AutoTokenizer

    directory = checkpoints.write_byte_level(tmp_path, "gpt2")
    config = {"add_bos_token": ends[0], "add_eos_token": ends[1]}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    ours, reference = load_tokenizer(directory), AutoTokenizer.from_pretrained(directory)
    assert ours.encode([CORPUS[0]])[0].ids == reference(CORPUS[0]).input_ids
    assert ours.encode([CORPUS[0]], pairs=["sailor"])[0].ids == reference(CORPUS[0], "sailor").input_ids


@pytest.mark.parametrize(("limit", "expected"), [(512, 512), (1e30, None), (None, None)])
def test_huge_length_limits_are_ignored(tmp_path: Path, limit: float | None, expected: int | None):
    directory = checkpoints.write_bert(tmp_path)
    (directory / "tokenizer_config.json").write_text(json.dumps({"model_max_length": limit}))
    assert load_tokenizer(directory).max_length == expected


def test_error_for_a_directory_without_a_tokenizer(tmp_path: Path):
    with pytest.raises(TokenizerError, match="no tokenizer") as error:
        load_tokenizer(tmp_path)
    assert str(tmp_path) not in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("t5", "spiece.model"),
        ("marian", "source.spm"),
        ("marian", "target_vocab.json"),
        ("marian", "vocab.json"),
        ("sentencepiece_llama", "tokenizer.model"),
        ("llama", "tokenizer.json"),
        ("llama", "tokenizer_config.json"),
        ("gpt2", "vocab.json"),
        ("pegasus", "spiece.model"),
        ("mbart", "sentencepiece.bpe.model"),
        ("m2m_100", "sentencepiece.bpe.model"),
        ("m2m_100", "vocab.json"),
        ("blenderbot_small", "vocab.json"),
        ("blenderbot_small", "merges.txt"),
    ],
)
def test_errors_for_damaged_files_name_them(tmp_path: Path, kind: str, name: str):
    if kind == "gpt2":
        checkpoints.write_byte_level(tmp_path, "gpt2")
    else:
        getattr(checkpoints, f"write_{kind}")(tmp_path)
    if name == "target_vocab.json":
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"separate_vocabs": True}))
    (tmp_path / name).write_bytes(b'\x0a\xff{"half": ')
    with pytest.raises(TokenizerError) as error:
        load_tokenizer(tmp_path)
    assert name.split(".")[0] in str(error.value) or (name == "vocab.json" and "merges.txt" in str(error.value))
    assert str(tmp_path) not in str(error.value) and "\n" not in str(error.value)


def test_links_out_of_the_directory_are_errors(tmp_path: Path):
    outside = tmp_path / "secret.json"
    outside.write_text("{}")
    directory = checkpoints.write_llama(tmp_path / "model")
    (directory / "tokenizer_config.json").unlink()
    (directory / "tokenizer_config.json").symlink_to(outside)
    with pytest.raises(TokenizerError, match="leads out"):
        load_tokenizer(directory)


def test_a_directory_saved_by_the_reference_gives_the_same_tokenizer(
    tokenizer: Tokenizer, oracle, compared: list[str], tmp_path: Path
):
    oracle.save_pretrained(tmp_path)
    saved = load_tokenizer(tmp_path)
    texts = compared + CORPUS[:5]
    ours = [encoding.ids for encoding in saved.encode(texts)]
    assert ours == [encoding.ids for encoding in tokenizer.encode(texts)]
    for ids in ours:
        for skip in (True, False):
            assert saved.decode(ids, skip) == oracle.decode(ids, skip_special_tokens=skip)
    assert saved.special == tokenizer.special and saved.special_ids == tokenizer.special_ids
    assert saved.max_length == tokenizer.max_length


class CountingBackend:
    """A stand-in for a tokenizer of the library that records the calls which add tokens."""

    def __init__(self) -> None:
        self.calls: list[tuple[bool, list[str]]] = []

    def add_tokens(self, tokens: list[AddedToken]) -> None:
        self.calls.append((False, [token.content for token in tokens]))

    def add_special_tokens(self, tokens: list[AddedToken]) -> None:
        self.calls.append((True, [token.content for token in tokens]))


def test_tokens_are_added_in_order_in_few_calls():
    """Each call makes the library rebuild its search. With a call per token, the 6,415 tokens of Gemma 3 take 60 s."""
    backend = CountingBackend()
    tokens = [AddedToken(f"<{index}>", special=index >= 3000) for index in range(6000)]
    add_in_order(backend, [*tokens, AddedToken("<last>")], {"<0>"})
    names = [token.content for token in tokens]
    assert backend.calls == [
        (True, names[:1]),
        (False, names[1:3000]),
        (True, names[3000:]),
        (False, ["<last>"]),
    ]


def test_a_vocabulary_with_a_gap_has_the_size_of_its_highest_id(tmp_path: Path):
    directory = checkpoints.write_llama(tmp_path)
    dense = load_tokenizer(directory)
    content = json.loads((directory / "tokenizer.json").read_text())
    vocabulary = content["model"]["vocab"]
    vocabulary["moved"] = dense.vocab_size + 6
    (directory / "tokenizer.json").write_text(json.dumps(content))
    tokenizer = load_tokenizer(directory)
    assert tokenizer.vocab_size == dense.vocab_size + 7 and tokenizer.special == dense.special


def test_no_module_imports_torch_or_transformers():
    root = Path(text_package.__file__).parent
    names = [".".join(path.relative_to(root).with_suffix("").parts) for path in root.rglob("*.py")]
    names = [f"server.text.{name}".removesuffix(".__init__") for name in names]
    code = f"import sys, {', '.join(names)}; "
    code += "sys.exit(any(name in sys.modules for name in ('torch', 'transformers', 'safetensors')))"
    assert len(names) > 20 and subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_long_texts_give_what_short_ones_do(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch):
    """Long texts go to another function of the library, which must give the same ids."""
    usual = tokenizer.encode(TORTURE + CORPUS[:5])
    decoded = [tokenizer.decode(encoding.ids) for encoding in usual]
    monkeypatch.setattr(fast, "MAX_LOCKED_TOKENS", 0)
    for encoding, text, other in zip(usual, decoded, tokenizer.encode(TORTURE + CORPUS[:5]), strict=True):
        assert list(other.offsets) == list(encoding.offsets) and other.ids == encoding.ids
        assert tokenizer.decode(encoding.ids) == text


@pytest.mark.parametrize("line", ["zz yy", "Q Z", "one"])
def test_a_bad_merge_in_a_file_is_one_line(tmp_path: Path, line: str):
    directory = checkpoints.write_byte_level(tmp_path, "gpt2")
    merges = (directory / "merges.txt").read_text(encoding="utf-8")
    (directory / "merges.txt").write_text(f"{merges}{line}\n", encoding="utf-8")
    with pytest.raises(TokenizerError, match=r"merges.txt(: merge \d+ of \d+ does not join| is damaged)") as error:
        load_tokenizer(directory)
    assert "\n" not in str(error.value) and "zz" not in str(error.value)
