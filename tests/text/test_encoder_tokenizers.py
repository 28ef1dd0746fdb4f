"""Tokenizers of all encoder families equal transformers: ids, token types, special tokens, decoding."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from server.text.tokenizers.load import load_tokenizer
from tests.text.checkpoints import CORPUS, TORTURE
from tests.text.encoder_checkpoints import REFERENCES, write


@pytest.fixture(scope="module", params=REFERENCES)
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    """The directory with the tokenizer of a family, and the tokenizer that transformers loads from it."""
    directory = tmp_path_factory.mktemp(request.param)
    return directory, write(directory, request.param)


def _texts(reference) -> list[str]:
    mask = reference.mask_token
    return [*TORTURE, *CORPUS[:20], f"The {mask} sees {mask}.", f"{mask}{mask} night", f"a {mask}"]


def test_ids_equal_the_reference(saved):
    directory, reference = saved
    texts, ours = _texts(reference), load_tokenizer(directory)
    for special in (True, False):
        for text, encoding in zip(texts, ours.encode(texts, add_special_tokens=special), strict=True):
            assert encoding.ids == reference(text, add_special_tokens=special).input_ids, text
            assert not any(encoding.type_ids)


def test_pairs_equal_the_reference(saved):
    directory, reference = saved
    firsts, seconds = CORPUS[:8], TORTURE[2:10]
    for encoding, first, second in zip(
        load_tokenizer(directory).encode(firsts, pairs=seconds), firsts, seconds, strict=True
    ):
        expected = reference(first, second)
        assert encoding.ids == expected.input_ids
        if "token_type_ids" in expected:
            assert encoding.type_ids == expected.token_type_ids


def test_special_tokens_equal_the_reference(saved):
    directory, reference = saved
    ours = load_tokenizer(directory)
    assert ours.special.mask is not None and ours.special_ids == frozenset(reference.all_special_ids)
    for role in ("bos", "eos", "pad", "unk", "mask", "cls", "sep"):
        assert getattr(ours.special, role) == getattr(reference, f"{role}_token_id", None), role


@pytest.mark.parametrize("skip", [True, False])
def test_decoding_equals_the_reference(saved, skip: bool):
    directory, reference = saved
    ours = load_tokenizer(directory)
    for encoding in ours.encode(_texts(reference)):
        assert ours.decode(encoding.ids, skip) == reference.decode(encoding.ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", [kind for kind in REFERENCES if kind != "modernbert"])
def test_family_defaults_replace_missing_settings(kind: str, tmp_path: Path):
    """Early checkpoints such as xlm-roberta-base have a `tokenizer_config.json` with hardly any settings."""
    write(tmp_path, kind)
    full = load_tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"model_max_length": 512}))
    bare = load_tokenizer(tmp_path)
    assert bare.max_length == 512
    assert bare.special == full.special
    texts = [*TORTURE, *CORPUS[:5]]
    assert [encoding.ids for encoding in bare.encode(texts)] == [encoding.ids for encoding in full.encode(texts)]


@pytest.mark.parametrize("kind", ["mpnet", "deberta"])
def test_vocabulary_files_without_tokenizer_json(kind: str, tmp_path: Path):
    """The first checkpoints of these families have only vocabulary files.

    DeBERTa puts one separator between the texts of a pair, as in the code that trained it; transformers 5 puts two.
    """
    reference = write(tmp_path, kind)
    (tmp_path / "tokenizer.json").rename(tmp_path / "all.json")
    (tmp_path / "tokenizer_config.json").unlink()
    model = json.loads((tmp_path / "all.json").read_text())["model"]
    if kind == "mpnet":
        (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in model["vocab"]))
    else:
        (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
        (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in model["merges"]))
    ours, texts = load_tokenizer(tmp_path), _texts(reference)
    for text, encoding in zip(texts, ours.encode(texts), strict=True):
        assert encoding.ids == reference(text).input_ids, text
        assert ours.decode(encoding.ids) == reference.decode(encoding.ids, skip_special_tokens=True)
    (pair,) = ours.encode(["The old"], pairs=["sailor"])
    first, second = (reference(text, add_special_tokens=False).input_ids for text in ("The old", "sailor"))
    cls, sep = [reference.cls_token_id], [reference.sep_token_id]
    if kind == "mpnet":
        assert pair.ids == reference("The old", "sailor").input_ids and not any(pair.type_ids)
    else:
        assert pair.ids == cls + first + sep + second + sep
        assert pair.type_ids == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_token_types_are_zero_where_the_model_takes_none(tmp_path: Path):
    """A model without token types in `model_input_names` was trained with type 0 for all tokens, even for pairs."""
    write(tmp_path, "electra")
    (typed,) = load_tokenizer(tmp_path).encode(["The old"], pairs=["sailor"])
    assert 1 in typed.type_ids
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps(config | {"model_input_names": ["input_ids", "attention_mask"]})
    )
    (untyped,) = load_tokenizer(tmp_path).encode(["The old"], pairs=["sailor"])
    assert untyped.ids == typed.ids and untyped.type_ids == [0] * len(untyped.ids)
    reference = AutoTokenizer.from_pretrained(tmp_path)
    assert "token_type_ids" not in reference("The old", "sailor")
