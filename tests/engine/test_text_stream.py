"""Text as it becomes printable: whole characters only, nothing of a stop string."""

from __future__ import annotations

import _native_testing as testing
from hypothesis import given
from hypothesis import strategies as st


def cut(data: bytes, sizes: list[int]) -> list[bytes]:
    pieces, at = [], 0
    for size in sizes:
        pieces.append(data[at : at + size])
        at += size
    return [*pieces, data[at:]]


@given(text=st.text(), sizes=st.lists(st.integers(0, 5), max_size=60))
def test_characters_cut_across_tokens_come_out_whole(text: str, sizes: list[int]) -> None:
    pieces, stopped = testing.stream(cut(text.encode("utf-8", "surrogatepass"), sizes), [])
    assert not stopped
    if not any("\ud800" <= c <= "\udfff" for c in text):
        assert "".join(pieces) == text
        assert "\ufffd" in text or not any("\ufffd" in piece for piece in pieces)


@given(data=st.binary(max_size=80), sizes=st.lists(st.integers(0, 4), max_size=60))
def test_bytes_that_are_no_text_are_replaced_as_python_does(data: bytes, sizes: list[int]) -> None:
    pieces, _ = testing.stream(cut(data, sizes), [])
    assert "".join(pieces) == data.decode("utf-8", "replace")


@given(
    before=st.text("abx", max_size=12),
    stop=st.text("ab", min_size=1, max_size=4),
    after=st.text("abx", max_size=8),
    sizes=st.lists(st.integers(0, 3), max_size=30),
)
def test_text_ends_before_the_first_stop_string(before: str, stop: str, after: str, sizes: list[int]) -> None:
    text = before + stop + after
    pieces, stopped = testing.stream(cut(text.encode(), sizes), [stop])
    assert stopped
    assert "".join(pieces) == text[: text.index(stop)]


@given(text=st.text("abé€🙂", max_size=20), sizes=st.lists(st.integers(0, 3), max_size=40))
def test_without_a_match_nothing_is_lost(text: str, sizes: list[int]) -> None:
    stop = text + "a"
    pieces, stopped = testing.stream(cut(text.encode(), sizes), [stop])
    assert not stopped
    assert "".join(pieces) == text


def test_several_stop_strings_the_earliest_wins() -> None:
    assert testing.stream([b"one two", b" three"], ["three", "two"]) == (["one ", "", ""], True)
