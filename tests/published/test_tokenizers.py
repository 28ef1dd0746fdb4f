"""Published `tokenizer.json` files give the same ids and texts as the `tokenizers` library."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from server.text.tokenizers.load import load_tokenizer
from tests.published.conftest import found
from tests.text.checkpoints import CORPUS, TORTURE

FOLDERS = [path.parent for path in found("tokenizers/*/tokenizer.json")]
TEXTS = [
    *CORPUS,
    *TORTURE,
    "def f(x):\n    return x ** 2  # square\n",
    "La casa está lejos; 12,345.67 € — «non»…",
    "東京は日本の首都です。\n\n\n  新しい 한국어 텍스트 🤷🏽‍♀️",
    "  leading and trailing  ",
    "<s>[INST] a [/INST]</s><|im_start|>user\n<start_of_turn>",
]


@pytest.fixture(params=FOLDERS, ids=[path.name for path in FOLDERS])
def checkpoint(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A directory with a published tokenizer, and the smallest `config.json`."""
    shutil.copytree(request.param, tmp_path, dirs_exist_ok=True)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    return tmp_path


def test_ids_and_texts(checkpoint: Path) -> None:
    theirs, ours = Tokenizer.from_file(str(checkpoint / "tokenizer.json")), load_tokenizer(checkpoint)
    for special in (False, True):
        expected = theirs.encode_batch(TEXTS, add_special_tokens=special)
        encodings = ours.encode(TEXTS, add_special_tokens=special, offsets=False)
        assert [encoded.ids for encoded in encodings] == [encoded.ids for encoded in expected]
    for encoding in theirs.encode_batch(TEXTS, add_special_tokens=False):
        text = theirs.decode(encoding.ids, skip_special_tokens=False)
        assert ours.decode(encoding.ids, skip_special_tokens=False) == text


def test_loading_takes_little_longer_than_the_library_itself(checkpoint: Path, record_property) -> None:
    """Compares processor times in this process, the best of three for each."""

    def seconds(load) -> float:
        def once() -> float:
            start = time.process_time()
            load()
            return time.process_time() - start

        return min(once() for _ in range(3))

    file = str(checkpoint / "tokenizer.json")
    library, ours = seconds(lambda: Tokenizer.from_file(file)), seconds(lambda: load_tokenizer(checkpoint))
    print(f"{library:.2f} s, ours {ours:.2f} s")
    assert ours <= 1.2 * library + 0.2
