"""The store of glossaries: the memory that it counts, and the equal share of it that each API key has."""

from __future__ import annotations

import sys
from pathlib import Path

import orjson
import pytest

from server.errors import RequestTooLarge, StorageFailed
from server.operations import glossary_store
from server.operations.glossary_store import DICTIONARY_BYTES, GLOSSARY_BYTES, TERM_BYTES, GlossaryStore, StoredGlossary

PAIR = ("en", "de")


def entries(count: int) -> dict[str, str]:
    return {f"{number:04}": "abcd" for number in range(count)}


def size(count: int, glossaries: int = 1) -> int:
    """Memory of glossaries with names of three characters and one dictionary each. count: number of all terms."""
    return glossaries * (GLOSSARY_BYTES + 3 + DICTIONARY_BYTES) + count * (TERM_BYTES + 8)


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> GlossaryStore:
    """A store for two API keys, each with room for 100 terms in two glossaries."""
    monkeypatch.setattr(glossary_store, "MAX_BYTES", 2 * size(100, glossaries=2))
    store = GlossaryStore()
    store.use_owners({"a": "first", "b": "second"})
    return store


def test_a_key_cannot_take_the_room_of_another(store: GlossaryStore) -> None:
    store.create("a", "one", {PAIR: entries(60)})
    store.create("a", "two", {PAIR: entries(40)})
    with pytest.raises(RequestTooLarge):
        store.create("a", "six", {PAIR: entries(1)})
    store.create("b", "one", {PAIR: entries(100)})


def test_a_glossary_that_shrinks_is_stored_over_the_share(store: GlossaryStore) -> None:
    made = store.create("a", "one", {PAIR: entries(100)})
    store.use_owners({"a": "first", "b": "second", "c": "third"})
    grown = StoredGlossary(made.owner, "one", {PAIR: entries(101)}, made.id, made.created)
    with pytest.raises(RequestTooLarge):
        store.save(grown)
    shrunk = StoredGlossary(made.owner, "one", {PAIR: entries(90)}, made.id, made.created)
    assert store.save(shrunk).num_bytes == size(90)
    store.delete("a", made.id)
    store.create("a", "two", {PAIR: entries(60)})


def test_files_are_read_again(tmp_path: Path) -> None:
    made = GlossaryStore(tmp_path).create("", "né", {PAIR: entries(2), ("de", "en"): {"ä": "b"}})
    assert orjson.loads((tmp_path / f"{made.id}.json").read_bytes())["name"] == "né"
    assert GlossaryStore(tmp_path).get("", made.id) == made


def test_a_glossary_whose_file_cannot_be_removed_stays(tmp_path: Path) -> None:
    store = GlossaryStore(tmp_path)
    made = store.create("", "one", {PAIR: entries(1)})
    file = tmp_path / f"{made.id}.json"
    file.unlink()
    file.mkdir()  # stands for a read-only file system, which a test of root cannot have
    with pytest.raises(StorageFailed):
        store.delete("", made.id)
    with pytest.raises(StorageFailed):
        store.save(made)
    assert store.all("") == [made] and list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize(
    ("letter", "width"), [("a", 1), ("é", 1 + 2), ("Ж", 2 + 2), ("語", 2 + 3), ("\U00020000", 4 + 4)]
)
def test_terms_count_by_the_bytes_of_their_characters(letter: str, width: int) -> None:
    """Python stores a text with 1, 2 or 4 bytes per character, whatever its widest character needs, and UTF-8."""
    few, many = (StoredGlossary("first", "g", {PAIR: {letter * count: letter * count}}).num_bytes for count in (10, 60))
    assert many - few == 2 * 50 * width


@pytest.mark.parametrize("text", ["plain", "caf\u00e9", "\u0416" * 3, "a\u8a9e", "b\U00020000" * 20, "\u00ff" * 64])
def test_bytes_that_python_keeps_later_are_counted(text: str) -> None:
    fresh = "".join(list(text))
    counted = glossary_store._character_bytes(fresh)
    orjson.dumps(fresh)  # Python keeps the UTF-8 bytes, which this call asks for
    needed = sys.getsizeof(fresh) - sys.getsizeof("")
    assert needed <= counted <= needed + 4
    assert glossary_store._character_bytes(fresh) == counted
