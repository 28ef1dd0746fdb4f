"""`MarkerScanner` finds the first marker, however the text is cut, and holds back only a possible part of a marker."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from server.ipc.wire.sections import Marker, MarkerScanner

MARKERS = [Marker(1, "<a>"), Marker(2, "<<b"), Marker(3, "aab"), Marker(4, '{"n":', at_start=True)]
TEXTS = st.lists(st.sampled_from(["<", "a", ">", "b", "<a", "aa", " ", "\n", "{", '"n"', ":", "x"]), max_size=12).map(
    "".join
)


def first_marker(text: str) -> tuple[int, int] | None:
    """Section and end of the first marker in a text, found by trying every prefix."""
    for end in range(1, len(text) + 1):
        begun = text[:end]
        if "".join(begun.split()) == '{"n":' and not begun[-1].isspace():
            return 4, end
        for marker in sorted(MARKERS[:3], key=lambda longest: -len(longest.text)):
            if begun.endswith(marker.text):
                return marker.section, end
    return None


def may_become_marker(text: str, held: str) -> bool:
    squeezed = "".join(text.split())
    if len(held) == len(text) and '{"n":'.startswith(squeezed):
        return True
    return any(marker.text.startswith(held) for marker in MARKERS[:3])


@given(TEXTS, st.lists(st.integers(0, 40), max_size=4))
def test_the_first_marker_is_found_however_the_text_is_cut(text: str, cuts: list[int]) -> None:
    scanner, start = MarkerScanner(MARKERS), 0
    for end in [*sorted(min(cut, len(text)) for cut in cuts), len(text)]:
        found = scanner.push(text[start:end])
        if found is not None:
            assert (found[0].section, start + found[1]) == first_marker(text)
            return
        start = end
        assert first_marker(text[:end]) is None
        assert text[:end].endswith(scanner.held) and may_become_marker(text[:end], scanner.held)
    longer = [text[size:] for size in range(len(text) - len(scanner.held))]
    assert not any(may_become_marker(text, marker) for marker in longer), "a longer end may become a marker"


def test_special_tokens_count_at_the_start_only_if_they_say_so() -> None:
    scanner = MarkerScanner([Marker(1, token_id=7, at_start=True), Marker(2, token_id=8)])
    scanner.push(" \n")
    assert [scanner.of_token(token).section for token in (7, 8)] == [1, 2] and scanner.of_token(9) is None
    scanner.push("x")
    assert scanner.of_token(7) is None and scanner.of_token(8).section == 2


def test_a_fork_goes_on_alone() -> None:
    scanner = MarkerScanner(MARKERS)
    scanner.push("<")
    other = scanner.fork()
    assert other.push("a>")[0].section == 1 and scanner.push("<b")[0].section == 2
