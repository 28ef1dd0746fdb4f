"""Percent escapes in URL-encoded forms are decoded as by the parser of the standard library."""

from __future__ import annotations

from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st

from server.api.bodies import form
from server.errors import InvalidRequest

PARTS = st.sampled_from(["a", "%41", "%c3%a9", "%c3", "%", "&", "=", "+", "é", "%4", "%zz", "日"])


@given(st.lists(PARTS, max_size=14).map("".join), st.integers(3, 9))
def test_forms_are_those_of_the_standard_library(text: str, piece: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(form, "UNQUOTED_BYTES", piece)
        try:
            expected = parse_qsl(text, keep_blank_values=True, errors="strict")
        except UnicodeDecodeError:
            with pytest.raises(InvalidRequest, match="UTF-8"):
                form._url_encoded(text.encode())
        else:
            assert form._url_encoded(text.encode()) == expected


def test_too_many_values_are_refused() -> None:
    assert len(form._url_encoded(b"&".join([b"a=1"] * form.MAX_VALUES))) == form.MAX_VALUES
    with pytest.raises(InvalidRequest, match="1100 values"):
        form._url_encoded(b"&".join([b"a=1"] * (form.MAX_VALUES + 1)))
