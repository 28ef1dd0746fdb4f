"""Plain text whose lines were broken at a width: a paragraph is one text. Lines of verses and tables stay apart."""

from __future__ import annotations

import textwrap

import pytest

from tests.text.documents.translating import read, translated

LETTER = """\
Dear Sir,

I write to you from the small house beside the river, where the
children of the village come every morning to hear a story before
they go to school. The old king, who lives in the great house on
the hill, does not like it at all; he says each year that a well-
known rule forbids it.

   The second paragraph has an indentation, as they have it in
books that were printed long ago, and it is wrapped at the same
width as the others are, so that nobody can tell them apart.
   Here follows a third one without a blank line before it, for
which only the indentation shows that it begins.

> You wrote that the dog sleeps in the garden, and that nobody has
> seen the cat since the beginning of the winter, which I can only
> call remarkable.
>
> Not a word more.

- An item of a list that is longer than one line, so that it goes
  on in the next line with an indentation of its own.
- A short item.

Yours,
A friend
"""


def texts(file: str) -> list[str]:
    return [unit.text for unit in read("a.txt", file).units]


def test_the_lines_of_a_paragraph_are_one_text() -> None:
    found = texts(LETTER)
    assert found[0] == "Dear Sir,"
    assert found[1].startswith("I write to you from the small house beside the river, where the children of")
    assert found[1].endswith("he says each year that a well-known rule forbids it.")
    assert found[2].startswith("The second paragraph") and found[2].endswith("can tell them apart.")
    assert found[3].startswith("Here follows") and found[3].endswith("that it begins.")
    assert found[4].startswith("You wrote that the dog") and found[4].endswith("call remarkable.")
    assert found[5:] == [
        ">",
        "> Not a word more.",
        "- An item of a list that is longer than one line, so that it goes on in the next line with an indentation of "
        "its own.",
        "- A short item.",
        "Yours,",
        "A friend",
    ]


def test_a_translation_is_broken_at_the_same_width() -> None:
    found = translated("a.txt", LETTER).decode()
    assert "well-known".upper() in found
    assert found.replace("WELL-KNOWN", "WELL-\nKNOWN").split() == LETTER.upper().split()
    lines = found.splitlines()
    assert max(map(len, lines)) == max(map(len, LETTER.splitlines()))
    assert lines[0] == "DEAR SIR," and lines[-2:] == ["YOURS,", "A FRIEND"]
    assert [line for line in lines if line.startswith(">")] == [
        line.upper() for line in LETTER.splitlines() if line.startswith(">")
    ]
    assert "\n   THE SECOND" in found and "\n  ON IN THE NEXT LINE" in found


@pytest.mark.parametrize("newline", ["\n", "\r\n", "\r"])
def test_a_file_that_no_translation_changes_stays(newline: str) -> None:
    file = LETTER.replace("\n", newline) + "The end   " + newline + " x"
    document = read("a.txt", file)
    assert document.write([unit.text for unit in document.units], "fr").decode() == file
    assert newline.join(["they", ""]).encode() not in translated("a.txt", file)


def test_the_paragraphs_of_a_book_are_found_at_every_width() -> None:
    words = ("the old king of the north has a small dog that sleeps beside the river all day " * 6).split()
    sentence = " ".join(words)
    for width in range(40, 121):
        lines = textwrap.wrap(sentence, width)
        found = texts("\n".join(lines) + "\n\nThe end\n")
        assert found == [sentence, "The end"], width


@pytest.mark.parametrize(
    "file",
    [
        # verses
        "Shall I compare thee to a summer's day and to the early light?\nThou art more lovely and more temperate:\n"
        "rough winds do shake the darling buds of May, and all too short\nis summer's lease.",
        # one sentence in each line
        "The dog sleeps in the garden of the king today.\nthe cat sleeps in the house of the old king.\n"
        "the horse sleeps beside the river of the town.\n" * 2,
        # titles
        "The House beside the River of the Old Town\nThe King who Loved the Sea and the Winter\n"
        "The Dog that Slept all Day",
        # a table
        "name of the house    number of the rooms in it\nthe old one beside   three rooms and a garden\n"
        "the new one there    two rooms and no garden at",
        # short lines
        "the old man\nand the sea\nare one\nof the books",
        # an address
        "Mr. John Smith of the Old House beside the River\n12 Garden Street\nthe Old Town\n",
        # Chinese, whose words have no spaces
        "这是一个很长的句子没有空格因为中文的词之间没有空格这是一个很长的句子没有空格因为中文的词之间没有空格\n" * 3,
        # two lines alone do not show that they belong together
        "A heading that has more than forty characters\nand another line",
        "",
    ],
)
def test_other_lines_are_texts_of_their_own(file: str) -> None:
    assert texts(file) == [line for line in file.splitlines() if line.strip()]


def test_a_text_without_paragraphs_is_divided_at_the_end_of_a_sentence() -> None:
    sentence = "the old king of the north has a small dog that sleeps beside the river all day long. "
    file = textwrap.wrap(sentence * 400, 70)
    found = texts("\n".join(file))
    assert len(found) > 3 and max(map(len, found)) < 70 * 201
    assert all(text.endswith("long.") for text in found)
    assert " ".join(found) == " ".join(file)
