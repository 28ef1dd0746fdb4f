"""Inline markup without text of its own (atoms), such as icons, keeps its place between words and its white space."""

from __future__ import annotations

import re

import numpy as np
import pytest

from server.operations.translating.segments import split
from server.text.markup.markup_options import MarkupOptions
from server.text.markup.markup_sentences import MarkedSentence, sentences
from server.text.markup.placed_tags import InlineTag, PlacedTag, compose
from server.text.markup.protected import Protection
from server.text.markup.unit_attention import TokenAlignment

HTML = MarkupOptions("html")
ICON = '<i class="fa"></i>'


def rendered(document: str, translation: str, pairs: dict[str, str], options: MarkupOptions = HTML) -> str:
    """The document with its one sentence translated.

    pairs: the aligned source word of each word or mark of the translation. What is missing in `pairs` is aligned with
        the same word of the source, if there is one.
    """
    parts = sentences(
        document,
        options,
        lambda text: [(sentence.text, sentence.separator) for sentence in split(text, "fr", bool)],
        bool,
    )
    found = []
    for part in parts:
        if isinstance(part, str):
            found.append(part)
            continue
        spans = [[match.span() for match in re.finditer(r"\w+|[^\w\s]", text)] for text in (part.text, translation)]
        words = [part.text[slice(*span)] for span in spans[0]]
        weights = np.full((len(spans[1]), len(words) + 1), 0.01, np.float32)
        for row, span in enumerate(spans[1]):
            word = translation[slice(*span)]
            word = pairs.get(word, word)
            weights[row, words.index(word) if word in words else -1] = 1
        found.append(part.render(translation, TokenAlignment([*spans[0], (0, 0)], spans[1], weights)))
    assert sum(isinstance(part, MarkedSentence) for part in parts) == 1, parts
    return "".join(found)


RED = {"Nous": "We", "aimons": "like", "la": "the", "maison": "house", "rouge": "red"}
FRENCH = "Nous aimons la maison rouge."


@pytest.mark.parametrize(
    "atom",
    [
        ICON,
        '<a id="x"></a>',
        "<span><b></b></span>",
        "<img src=a>",
        "<b><!-- c --></b>",
        "<u> </u>",
        "<wbr>",
        "<i> <img> </i>",
    ],
)
def test_an_empty_inline_element_is_kept_in_its_place(atom: str) -> None:
    assert (
        rendered(f"<p>We like the {atom} red house.</p>", FRENCH, RED) == f"<p>Nous aimons la maison {atom} rouge.</p>"
    )
    assert (
        rendered(f"<p>We like the red house {atom}.</p>", FRENCH, RED) == f"<p>Nous aimons la maison rouge {atom}.</p>"
    )
    assert rendered(f"<p>{atom} We like the red house.</p>", FRENCH, RED) == f"<p>{atom} {FRENCH}</p>"
    assert rendered(f"<p>We like the red house. {atom}</p>", FRENCH, RED) == f"<p>{FRENCH} {atom}</p>"


def test_an_empty_element_inside_an_inline_element_stays_inside() -> None:
    document = f"<p>We like <a href=x>the {ICON} red house</a>.</p>"
    assert rendered(document, FRENCH, RED) == f"<p>Nous aimons <a href=x>la maison {ICON} rouge</a>.</p>"


def test_the_white_space_at_an_atom_is_that_of_the_source() -> None:
    touching = rendered(f"<p>We like the {ICON}red house.</p>", FRENCH, RED)
    assert touching == f"<p>Nous aimons la maison {ICON}rouge.</p>"
    after = rendered(f"<p>We like the red{ICON} house.</p>", FRENCH, RED)
    assert after == f"<p>Nous aimons la maison rouge{ICON}.</p>"
    brackets = rendered(f"<p>We like ({ICON}) the red house.</p>", "Nous aimons () la maison rouge.", RED)
    assert brackets == f"<p>Nous aimons ({ICON}) la maison rouge.</p>"
    spaced = rendered("<p>We like the <code>x y</code> red house.</p>", FRENCH, RED | {"la": "the"})
    assert spaced == "<p>Nous aimons la maison <code>x y</code> rouge.</p>"


def test_an_atom_is_never_inside_a_word() -> None:
    for translation in ("J'ai une maison.", "J’ai une maison.", "Y-a-t-il 3.5 maisons."):
        for place in ("I <img> have a house.", "I have <code>q</code> a house.", "<img>I have a <img>house."):
            for word in ("I", "have", "a", "house"):
                pairs = dict.fromkeys(re.findall(r"\w+|[^\w\s]", translation), word)
                found = rendered(place, translation, pairs)
                text = re.sub(r"<code>q</code>|<img>", "\0", found)
                assert re.sub(r" ?\0 ?", " ", text).split() == translation.split(), found


@pytest.mark.parametrize(
    "note", ['<a href="#n1">1</a>', '<a href="#n1">[2]</a>', "<sup>3</sup>", "<sup><a>4</a></sup>"]
)
def test_the_mark_of_a_note_stays_behind_its_word(note: str) -> None:
    assert rendered(f"<p>We like the red house.{note}</p>", FRENCH, RED) == f"<p>{FRENCH}{note}</p>"
    found = rendered(f"<p>We like the red house{note} .</p>", FRENCH, RED)
    assert found.count(note) == 1 and f" {note}" not in found


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ("<p>We like the<br>red house.</p>", "<p>Nous aimons la maison<br>rouge.</p>"),
        ("<p>We like the <br/> red house.</p>", "<p>Nous aimons la maison <br/> rouge.</p>"),
        ("<p>We like the<img><br><br>red house.</p>", "<p>Nous aimons la maison<img><br><br>rouge.</p>"),
        ("<p>We like<br>the<br>red house.</p>", "<p>Nous aimons<br>la maison<br>rouge.</p>"),
        ("<p>We like <b>the<br>red house</b>.</p>", "<p>Nous aimons <b>la maison<br>rouge</b>.</p>"),
        ("<p><br>We like the red house.<br></p>", "<p><br>Nous aimons la maison rouge.<br></p>"),
    ],
)
def test_a_line_break_separates_words_without_white_space(document: str, expected: str) -> None:
    options = MarkupOptions("html", non_splitting_tags=frozenset({"br"}))
    assert rendered(document, FRENCH, RED, options) == expected


@pytest.mark.parametrize(
    ("document", "translation", "expected"),
    [
        (
            "<p>We <b>see<br id=1>dogs</b> and<br id=2>cats today.</p>",
            "Aujourd’hui chats et voyons chiens nous.",
            "<p>Aujourd’hui<br id=1>chats et <b>voyons<br id=2>chiens</b> nous.</p>",
        ),
        (
            "<p>We see<br id=1>dogs <b>and<br id=2>cats</b> today.</p>",
            "Et chats nous voyons chiens aujourd’hui.",
            "<p><b>Et<br id=1>chats</b> nous voyons<br id=2>chiens aujourd’hui.</p>",
        ),
        (
            "<p>We <b>see<br id=1>dogs</b> <i>and<br id=2>cats</i> today.</p>",
            "Et chats voyons chiens nous aujourd’hui.",
            "<p><i>Et<br id=1>chats</i> <b>voyons<br id=2>chiens</b> nous aujourd’hui.</p>",
        ),
        (
            "<p>We <b>see<br id=1>dogs</b> <i>and<br id=2><img><u>cats</u></i><br id=3> today.</p>",
            "Aujourd’hui et chats nous voyons chiens.",
            "<p>Aujourd’hui <i>et<br id=2><img><u>chats</u></i><br id=1>nous <b>voyons<br id=3> chiens</b>.</p>",
        ),
    ],
)
def test_line_breaks_keep_their_order_inside_and_outside_of_elements(
    document: str, translation: str, expected: str
) -> None:
    options = MarkupOptions("html", non_splitting_tags=frozenset({"br"}))
    pairs = {"nous": "We", "voyons": "see", "chiens": "dogs", "et": "and", "Et": "and", "chats": "cats"}
    assert (
        rendered(document, translation, pairs | {"Aujourd": "today", "hui": "today", "aujourd": "today"}, options)
        == expected
    )


@pytest.mark.parametrize(
    ("translation", "element"),
    [
        ("Je l'ai vu – le grand – hier.", " <i>– le grand –</i> "),
        ("Je l'ai vu, le grand, hier.", "<i>, le grand,</i> "),
        ("Je l'ai vu le grand hier.", " <i>le grand</i> "),
        ("Je l'ai vu hier – le grand.", " <i>– le grand</i>."),
    ],
)
def test_an_element_may_begin_with_a_dash_in_mid_sentence(translation: str, element: str) -> None:
    """The dash is part of the sentence, and not the marker of a list or of speech."""
    pairs = {"Je": "I", "l": "him", "ai": "saw", "vu": "saw", "le": "the", "grand": "tall", "hier": "yesterday"}
    for document in ("I saw him <i>– the tall one –</i> yesterday.", "I saw him<i> – the tall one – </i>yesterday."):
        assert element in rendered(document, translation, pairs | {",": "–"})


def test_the_model_reads_a_space_for_a_line_break() -> None:
    options = MarkupOptions("html", non_splitting_tags=frozenset({"br"}))
    document = "<p>One<br>two.<br>Three <img><br>four. <code><br></code> Five.</p>"
    found = sentences(document, options, lambda text: [(s.text, s.separator) for s in split(text, "fr", bool)], bool)
    texts = [part.text for part in found if isinstance(part, MarkedSentence)]
    assert texts == ["One two.", "Three four.", "Five."]
    assert "".join(part if isinstance(part, str) else part.raw for part in found) == document


def test_two_atoms_keep_the_space_between_them() -> None:
    for between in (" ", "", "\n", "  "):
        pair = f"{ICON}{between}<img>"
        found = rendered(f"<p>We like the {pair} red house.</p>", FRENCH, RED)
        assert found == f"<p>Nous aimons la maison {pair} rouge.</p>"


@pytest.mark.parametrize(
    ("start", "is_spaced", "expected"),
    [
        (12, False, "La maison <i/><b/> rouge"),  # <i/><b/>
        (14, True, "La maison <i/> <b/> rouge"),  # <i/>, <b/>
        (13, False, "La maison <i/> <b/> rouge"),  # <i/>/<b/>
    ],
)
def test_two_atoms_touch_only_if_they_touch_in_the_source(start: int, is_spaced: bool, expected: str) -> None:
    """A translation without the text between two atoms has a space there, so that they do not become one."""
    text = "La maison rouge"
    units = [(0, 2), (3, 9), (10, 15)]
    first = InlineTag(12, 12, "<i/>", is_atom=True, space_before=True)
    second = InlineTag(start, start, "<b/>", is_atom=True, space_before=is_spaced, space_after=True)
    placed = [PlacedTag(2, 2, first, []), PlacedTag(2, 2, second, [])]
    assert "".join(compose(placed, units, text, 0, len(text), str)) == expected


def test_an_atom_beside_an_element_keeps_its_space() -> None:
    found = rendered(f"<p>We like the {ICON} <b>red</b> house.</p>", FRENCH, RED)
    assert found == f"<p>Nous aimons la maison {ICON} <b>rouge</b>.</p>"


@pytest.mark.parametrize(
    ("document", "translation", "expected"),
    [
        (
            "<p>See https://a.org/?b=1&amp;c=2 now.</p>",
            "Voir now.",
            "<p>Voir https://a.org/?b=1&amp;c=2 now.</p>",
        ),
        ("Write to me&#64;a.org now.", "Voir to now.", "Voir to me&#64;a.org now."),
        ("Say &#123;n&#125; &amp; go.", "Voir & go.", "Voir &#123;n&#125; &amp; go."),
        ("Say &lt;1&gt; now, {n}&amp;.", "Voir now, &.", "Voir &lt;1&gt; now, {n}&amp;."),
    ],
)
def test_protected_parts_contain_character_references(document: str, translation: str, expected: str) -> None:
    options = MarkupOptions("html", protection=Protection(patterns=True))
    assert (
        rendered(document, translation, {"Voir": "See" if "See" in document else document.split()[0]}, options)
        == expected
    )


def test_atoms_of_a_list_keep_their_order() -> None:
    """The model swaps the attention of two neighbours."""
    document, options = "Red {a}, {b} and {c} house.", MarkupOptions("text", protection=Protection(patterns=True))
    found = rendered(document, "Maison rouge, et rouge.", {"Maison": "and", "rouge": ",", "et": "Red"}, options)
    assert found.index("{a}") < found.index("{b}") < found.index("{c}")


def test_many_atoms_are_joined_in_linear_time() -> None:
    document = "<p>" + "<img> " * 19_000 + "We like the red house.</p>"
    assert rendered(document, FRENCH, RED) == document.replace("We like the red house.", FRENCH)


@pytest.mark.parametrize(
    ("document", "translation", "expected"),
    [
        # The model repeats a word and aligns it with the punctuation after the placeholder.
        ("The house is small, {x}.", "La maison est petite, petite.", "La maison est petite, petite {x}."),
        ("The house is small, {x}.", "La maison est petite, petite", "La maison est petite, {x} petite"),
        ("We like ({x} the house).", "Nous aimons la maison.", "Nous aimons {x} la maison."),
        # The model leaves out the mark that the placeholder touches, at an end of the sentence.
        ("{x}: the house is small.", "La maison est petite.", "{x} La maison est petite."),
        ("The house is:{x}", "La maison est", "La maison est {x}"),
        ("{x}: the house is small.", ": la maison est petite.", "{x}: la maison est petite."),
    ],
)
def test_an_atom_beside_a_mark_is_never_glued_to_a_word(document: str, translation: str, expected: str) -> None:
    options = MarkupOptions("text", protection=Protection(patterns=True))
    assert rendered(document, translation, RED | {"petite": "."}, options) == expected
