"""In a translation, inline tags enclose the words that attend to the source words inside the tags."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from itertools import count, pairwise

import numpy as np
import pytest

from server.text.markup.placed_tags import InlineTag
from server.text.markup.tag_placement import place_tags
from server.text.markup.unit_attention import TokenAlignment

SOURCE = "We like the red house ."
TARGET = "Nous aimons la maison rouge ."
WORDS = {"Nous": "We", "aimons": "like", "la": "the", "maison": "house", "rouge": "red", ".": "."}


def spans(text: str) -> list[tuple[int, int]]:
    return [match.span() for match in re.finditer(r"\S+", text)]


def attention(pairs: dict[str, str], target: str = TARGET, source: str = SOURCE) -> TokenAlignment:
    """An alignment in which each target word attends to the source word in `pairs`.

    The last source token is special.
    """
    weights = np.full((len(target.split()), len(source.split()) + 1), 0.01, np.float32)
    for row, word in enumerate(target.split()):
        weights[row, source.split().index(pairs[word]) if word in pairs else -1] = 1
    return TokenAlignment([*spans(source), (0, 0)], spans(target), weights)


def tag(text: str, name: str, *children: InlineTag) -> InlineTag:
    start = SOURCE.index(text)
    return InlineTag(start, start + len(text), f"<{name}>", f"</{name}>", children=list(children))


def placed(*tags: InlineTag, alignment: TokenAlignment | None = None) -> str:
    return place_tags(TARGET, SOURCE, tags, alignment or attention(WORDS), lambda text: text)


def test_an_element_follows_its_word() -> None:
    assert placed(tag("red", "b")) == "Nous aimons la maison <b>rouge</b> ."
    assert placed(tag("red house", "b")) == "Nous aimons la <b>maison rouge</b> ."
    assert placed(tag("like", "b")) == "Nous <b>aimons</b> la maison rouge ."


def test_siblings_change_order_and_children_stay_inside() -> None:
    assert placed(tag("red", "b"), tag("house", "i")) == "Nous aimons la <i>maison</i> <b>rouge</b> ."
    nested = tag("the red house", "a", tag("red", "b", tag("red", "u")))
    assert placed(nested) == "Nous aimons <a>la maison <b><u>rouge</u></b></a> ."


def test_an_element_without_a_counterpart_goes_around_a_word_at_its_place() -> None:
    image = InlineTag(SOURCE.index("red"), SOURCE.index("red"), "<img>", is_atom=True)
    lost = attention({**WORDS, "rouge": "house"})
    assert placed(tag("red", "b"), alignment=lost) == "Nous aimons la <b>maison</b> rouge ."
    assert placed(tag("red", "b", image), alignment=lost).replace("<img>", "") == "Nous aimons la <b>maison</b> rouge ."
    assert placed(tag("red", "b", image), alignment=lost).count("<img>") == 1


def test_an_element_without_a_free_word_or_attention_stands_between_two_words() -> None:
    image = InlineTag(SOURCE.index("red"), SOURCE.index("red"), "<img>", is_atom=True)
    lost = attention({**WORDS, "rouge": "house"})
    everything = [tag("We like the", "a"), tag("house", "i"), tag("red", "b", image)]
    text = place_tags(TARGET, SOURCE, everything, lost, lambda text: text)
    assert text == "<a>Nous aimons la</a> <b><img></b> <i>maison rouge</i> ."
    everything[2].children.clear()
    text = place_tags(TARGET, SOURCE, everything, lost, lambda text: text)
    assert text == "<a>Nous aimons la</a> <b></b><i>maison rouge</i> ."
    assert place_tags(TARGET, SOURCE, [tag("red", "b", image)], None, lambda text: text) == TARGET + "<b><img></b>"


def test_an_element_without_letters_keeps_its_text() -> None:
    source, target = "The dog 1 runs & sleeps .", "Le chien dort ."
    number = InlineTag(8, 9, "<sup>", "</sup>", space_before=True)
    words = [(0, 3), (4, 7), (8, 9), (10, 14), (15, 16), (17, 23), (24, 25)]
    weights = np.zeros((4, 7), np.float32)
    weights[[0, 1, 2, 3], [0, 1, 5, 6]] = 1
    alignment = TokenAlignment(words, [(0, 2), (3, 8), (9, 13), (14, 15)], weights)
    assert place_tags(target, source, [number], alignment, str) == "Le chien <sup>1</sup> dort ."


def test_an_image_goes_before_the_word_that_followed_it() -> None:
    image = InlineTag(SOURCE.index("red"), SOURCE.index("red"), "<img>", is_atom=True)
    assert placed(image) == "Nous aimons la maison <img>rouge ."


def test_line_breaks_keep_their_order() -> None:
    """The model's attention swaps the words around two line breaks. Images move with their words."""
    places = SOURCE.index("like"), SOURCE.index("house")
    swapped = attention({**WORDS, "aimons": "house", "maison": "like"})
    for first, second, expected in (
        ('<br id="0"/>', '<br id="1"/>', 'Nous<br id="0"/>aimons la<br id="1"/>maison rouge .'),
        ("<img>", "<hr>", "Nous <hr> aimons la <img> maison rouge ."),
    ):
        tags = [
            InlineTag(place, place, name, is_atom=True, space_before="id" not in name, space_after="id" not in name)
            for place, name in zip(places, (first, second), strict=True)
        ]
        assert placed(*tags, alignment=swapped) == expected


def test_untranslated_text_replaces_its_words_or_their_translation() -> None:
    code = InlineTag(SOURCE.index("red"), SOURCE.index("red") + 3, "<code>red</code>", is_atom=True)
    assert placed(code) == "Nous aimons la maison <code>red</code> ."
    kept = place_tags("la red maison", SOURCE, [code], None, lambda text: text)
    assert kept == "la <code>red</code> maison"


def test_characters_of_the_translation_are_escaped() -> None:
    marked = place_tags("a < b", "x y", [InlineTag(0, 1, "<b>", "</b>")], None, lambda text: text.replace("<", "&lt;"))
    assert marked == "<b></b>a &lt; b"


@pytest.mark.parametrize("pieces", [["私は", "赤い", "家", "が好き"]])
def test_words_of_a_script_without_spaces_are_its_tokens(pieces: list[str]) -> None:
    target = "".join(pieces)
    edges = [sum(map(len, pieces[:count])) for count in range(len(pieces) + 1)]
    weights = np.zeros((len(pieces), 6), np.float32)
    for row, column in enumerate([0, 3, 4, 1]):
        weights[row, column] = 1
    alignment = TokenAlignment(spans(SOURCE), list(pairwise(edges)), weights)
    assert place_tags(target, SOURCE, [tag("red", "b")], alignment, lambda text: text) == "私は<b>赤い</b>家が好き"


def random_tags(rng: random.Random, start: int, end: int, names: Iterator[int], depth: int = 0) -> list[InlineTag]:
    """Nested elements, atoms and line breaks in a range of a source text. Each has its own number."""
    found = []
    while start < end and rng.random() < 0.8:
        first = rng.randint(start, end)
        start = rng.randint(first, end)
        space_before, space_after = rng.random() < 0.5, rng.random() < 0.5
        name = next(names)
        if rng.random() < 0.3:
            start = rng.choice([first, start])
            atom = rng.choice([f"<x{name}/>", f'<br id="{name}"/>']) if start == first else f"<x{name}/>"
            found.append(InlineTag(first, start, atom, "", True, [], space_before, space_after))
            continue
        inner = random_tags(rng, first, start, names, depth + 1) if depth < 3 else []
        found.append(InlineTag(first, start, f"<g{name}>", f"</g{name}>", False, inner, space_before, space_after))
    return found


def test_each_element_and_atom_occurs_once_and_nested() -> None:
    """Whatever the attention and however short the translation is."""
    rng, weights = random.Random(0), np.random.default_rng(0)
    words = ["a", "bb", "ccc", "dd,", "e.", "f1", "gg", "hh", "(ii)", "12", "3.5", "j'k", "ll-mm"]
    for _ in range(2000):
        source, target = (" ".join(rng.choices(words, k=rng.randint(1 - target, 8 - 3 * target))) for target in (0, 1))
        names = count()
        tags = random_tags(rng, 0, len(source), names)
        attention_of = weights.random((len(spans(target)), len(spans(source)) + 1), np.float32) ** rng.choice([1, 8])
        alignment = TokenAlignment([*spans(source), (0, 0)], spans(target), attention_of)
        marked = place_tags(target, source, tags, rng.choice([alignment, None]), lambda text: text)
        path: list[str] = []
        found = []
        for is_end, kind, name in re.findall(r'<(/?)(g|x|br id=")(\d+)', marked):
            if is_end:
                assert path.pop() == name, marked
                continue
            found.append(int(name))
            path += [name] if kind == "g" else []
        assert not path and sorted(found) == list(range(next(names))), marked
