"""Lines break between words on a terminal, however the text comes. A terminal emulator is the judge."""

from __future__ import annotations

import io
import itertools
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

import cli_fakes
import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wcwidth import wcswidth, wcwidth

from medusa_cli.support import console, errors, wrapping
from medusa_cli.support.wrapping import Wrap, fill

COLOUR = "\x1b[36m"
MARK = "\u0301"
PARTS = [
    "a",
    "bc",
    "of",
    "words ",
    " ",
    "  ",
    "\n",
    "\t",
    "字",
    "漢字",
    "。",
    "、",
    ",",
    "(",
    ")",
    "é",
    f"e{MARK}",
    "-",
]
TEXTS = st.lists(st.sampled_from(PARTS), max_size=60).map("".join)
WIDTHS = st.integers(min_value=3, max_value=24)
HOLDS = pytest.mark.parametrize("hold", [False, True])

WORD_ENDS = re.compile(r"(?<=[字漢。、])(?=[^。、,)])|(?<=[^(])(?=[字漢])")
"""Beside wide characters, but not behind an opening bracket, and not before what closes."""


class Screen(pyte.Screen):
    """pyte's, without marks that take no room: it breaks a full line before them."""

    def draw(self, data: str) -> None:
        super().draw("".join(character for character in data if wcwidth(character)))


class Emulator:
    """A terminal of which everything is seen: (columns, lines) and what they show, without empty lines at the end."""

    def __init__(self, columns: int, lines: int = 200) -> None:
        self.screen = Screen(columns, lines)
        self._stream = pyte.Stream(self.screen)

    def write(self, text: str) -> None:
        self._stream.feed(text.replace("\n", "\r\n"))

    def rows(self) -> list[str]:
        return trimmed(self.screen.display)


def trimmed(rows: Iterable[str]) -> list[str]:
    return "\n".join(row.rstrip() for row in rows).rstrip("\n").split("\n")


def expected(text: str, width: int) -> list[str]:
    """The lines of a whole text: each word on the line before it where it fits there."""
    rows = []
    for line in text.replace(MARK, "").split("\n"):
        row, full = "", False
        for word in re.findall(r"[ \t]|[^ \t]+", line):
            for part in WORD_ENDS.split(word):
                if part in " \t":
                    after = row + part if part == " " else row + " " * (8 - wcswidth(row) % 8)
                    full = full or wcswidth(after) > width - (part == "\t")
                    row = row if full else after
                    continue
                if full or (row and wcswidth(row + part) > width):
                    rows.append(row)
                    row, full = "", False
                for character in part:
                    if wcswidth(row + character) > width:
                        rows.append(row)
                        row = ""
                    row += character
        rows.append(row)
    return trimmed(rows)


def pieces(text: str, cuts: Iterable[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[begin:end] for begin, end in itertools.pairwise(places)]


def shown(parts: Iterable[str], width: int, hold: bool = False) -> list[str]:
    emulator, wrap = Emulator(width), Wrap(lambda: width, hold)
    for part in parts:
        emulator.write(wrap.piece(part))
    emulator.write(wrap.end())
    return emulator.rows()


@HOLDS
@given(TEXTS, WIDTHS, st.lists(st.integers(min_value=0), max_size=8))
def test_any_pieces_give_the_lines_of_the_whole_text(hold: bool, text: str, width: int, cuts: list[int]) -> None:
    assert shown(pieces(text, cuts), width, hold) == expected(text, width)


@given(TEXTS, WIDTHS)
def test_text_shows_as_soon_as_it_comes(text: str, width: int) -> None:
    emulator, wrap = Emulator(width), Wrap(lambda: width)
    for at, character in enumerate(text, 1):
        emulator.write(wrap.piece(character))
        assert emulator.rows() == expected(text[:at], width)


@given(TEXTS, WIDTHS)
def test_the_last_lines_are_right_where_the_screen_scrolls(text: str, width: int) -> None:
    emulator, wrap = Emulator(width, lines=4), Wrap(lambda: width)
    for character in text.strip() + "x":
        emulator.write(wrap.piece(character))
    assert emulator.rows() == trimmed(expected(text.strip() + "x", width)[-4:])


@given(TEXTS, WIDTHS)
def test_drafted_text_keeps_its_colour_when_its_word_moves(text: str, width: int) -> None:
    """Pieces in upper case were drafted."""
    emulator, wrap = Emulator(width), Wrap(lambda: width)
    for at, part in enumerate(pieces(text, range(0, len(text), 2))):
        emulator.write(wrap.piece(part.upper(), COLOUR) if at % 2 else wrap.piece(part))
    for row in emulator.screen.buffer.values():
        for cell in row.values():
            if cell.data.isalpha() and cell.data.isascii():
                assert cell.fg == ("cyan" if cell.data.isupper() else "default")


@HOLDS
@given(st.text(), st.lists(st.integers(min_value=0), max_size=8))
def test_where_there_is_no_terminal_the_text_is_as_it_was(hold: bool, text: str, cuts: list[int]) -> None:
    wrap = Wrap(lambda: 0, hold)
    assert "".join(map(wrap.piece, pieces(text, cuts))) + wrap.end() == text


@HOLDS
@given(st.text(), st.integers(min_value=1, max_value=24))
def test_nothing_but_spaces_is_lost_of_any_text(hold: bool, text: str, width: int) -> None:
    text = console.printable(text)
    wrap = Wrap(lambda: width, hold)
    out = re.sub(r"\x1b7([^\x1b]*\x1b8\x1b\[K)?", "", "".join(map(wrap.piece, text)) + wrap.end())
    assert letters(out) == letters(text)


@given(TEXTS, TEXTS, WIDTHS, WIDTHS)
def test_the_window_may_change_while_the_text_comes(before: str, after: str, width: int, changed: int) -> None:
    widths = [width]
    emulator, wrap = Emulator(width), Wrap(lambda: widths[-1])
    emulator.write(wrap.piece(before))
    emulator.screen.resize(columns=changed)
    widths.append(changed)
    emulator.write(wrap.piece(f"{after}\n"))
    assert letters("".join(emulator.rows())).endswith(letters(after))
    emulator.write(wrap.piece("the end of it all"))
    assert emulator.rows()[-len(expected("the end of it all", changed)) :] == expected("the end of it all", changed)


def letters(text: str) -> str:
    return re.sub(rf"[ \t\n{MARK}]", "", text)


@pytest.mark.parametrize(
    ("text", "width", "rows"),
    [
        ("one two three", 7, ["one two", "three"]),  # exactly to the edge
        ("one two\nthree", 7, ["one two", "three"]),
        ("one two   three  \n", 7, ["one two", "three"]),
        ("see https://example.org/a/long/path now", 12, ["see", "https://exam", "ple.org/a/lo", "ng/path now"]),
        ("    indented code here", 12, ["    indented", "code here"]),
        ("日本語の文章。終わり", 10, ["日本語の文", "章。終わり"]),
        ("日本語の文。終わり", 10, ["日本語の", "文。終わり"]),  # no line begins with a full stop
        ("abc 「日本」", 7, ["abc", "「日", "本」"]),
        ("go 🚀🚀🚀!", 8, ["go 🚀🚀", "🚀!"]),
        ("🇩🇪🇫🇷", 4, ["🇩🇪", "🇫🇷"]),
    ],
)
@HOLDS
def test_lines(text: str, width: int, rows: list[str], hold: bool) -> None:
    assert shown(text, width, hold) == rows
    assert shown([text], width, hold) == rows


def lines(text: str, width: int) -> list[str]:
    wrap = Wrap(lambda: width, hold=True)
    return ("".join(map(wrap.piece, text)) + wrap.end()).split("\n")


@pytest.mark.parametrize("cluster", ["👩\u200d👩\u200d👧", "👍🏽", "❤\ufe0f", "e\u0301\u0323", "कि", "각"])
def test_what_is_one_character_to_a_person_is_not_divided(cluster: str) -> None:
    for width in range(1, 20):
        for line in lines(cluster * 10, width):
            assert not line.replace(cluster, "")


def test_long_addresses_are_broken_by_the_terminal_so_that_they_can_be_copied() -> None:
    address = "https://example.org/" + "path/" * 20
    assert lines(f"see {address} there", 50) == ["see ", f"{address} there"]


def test_the_terminal_breaks_the_lines_of_fenced_code() -> None:
    code = "  if a  and b and c:\n\treturn `d`, '''e'''  \n"
    for fence in ("```", "~~~~"):
        text = f"some words here\n{fence}python\n{code}{fence}\nsome words again"
        assert lines(text, 10)[:2] == ["some words", "here"]
        assert code.split("\n")[0] in lines(text, 10)
        assert code.split("\n")[1] in lines(text, 10)
        assert lines(text, 10)[-2:] == ["some words", "again"]


@pytest.mark.parametrize("width", [20, 30, 60, 100])
def test_text_can_begin_and_go_on_behind_a_label(width: int) -> None:
    text = "a few words that take more than the place there is on a line of this terminal"
    out = fill(text, width, 8).split("\n")
    assert " ".join(line.strip() for line in out) == text
    assert len("12345678" + out[0].rstrip()) <= width
    for line in out[1:]:
        assert len(line.rstrip()) <= width
        assert line.startswith("        ") == (width >= 28)


# --- what is written to a terminal ------------------------------------------------------------------


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def stderr(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], io.StringIO]:
    """A standard error of so many columns; 0: a pipe."""

    def make(columns: int) -> io.StringIO:
        stream = Tty() if columns else io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        monkeypatch.setattr(wrapping, "columns", lambda _: columns)
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setenv("COLUMNS", str(columns))
        monkeypatch.delenv("NO_COLOR", raising=False)
        return stream

    return make


MESSAGE = "the context of 2048 tokens is full, so the answer stops here: /clear starts over, a larger -c makes room"


@pytest.mark.parametrize("columns", [20, 30, 60, 100])
def test_errors_and_notes_break_between_words(columns: int, stderr: Callable[[int], io.StringIO]) -> None:
    stream = stderr(columns)
    errors.print_error(MESSAGE)
    console.messages().print(f"note: {MESSAGE}", markup=False, soft_wrap=True)
    console.messages().print(f"note: [dim]{MESSAGE}[/]", style="dim")
    emulator = Emulator(columns)
    emulator.write(stream.getvalue())
    assert all(len(row) <= columns for row in emulator.rows())
    assert " ".join(emulator.rows()) == f"error: {MESSAGE} note: {MESSAGE} note: {MESSAGE}"
    assert emulator.screen.buffer[0][0].fg == "red"


def test_a_message_is_one_line_where_there_is_no_terminal(stderr: Callable[[int], io.StringIO]) -> None:
    stream = stderr(0)
    errors.print_error(MESSAGE * 5)
    console.messages().print(f"note: {MESSAGE * 5}", markup=False)
    console.messages().print(f"note: {MESSAGE * 5}")
    assert stream.getvalue() == f"error: {MESSAGE * 5}\n" + f"note: {MESSAGE * 5}\n" * 2


def test_a_value_goes_on_below_its_beginning(stderr: Callable[[int], io.StringIO]) -> None:
    stream = stderr(40)
    out = console.messages()
    out.print("[bold]problem:[/] ", end="")
    out.print("the words of a problem that needs two lines", markup=False)
    emulator = Emulator(40)
    emulator.write(stream.getvalue())
    assert emulator.rows() == ["problem: the words of a problem that", "         needs two lines"]


def test_what_is_to_be_copied_is_left_to_the_terminal(stderr: Callable[[int], io.StringIO]) -> None:
    stream = stderr(20)
    console.messages().print("medusa chat a-rather-long-name.gguf", markup=False, no_wrap=True)
    assert stream.getvalue() == "medusa chat a-rather-long-name.gguf\n"


@pytest.mark.parametrize(
    ("columns", "variables"), [(30, {}), (60, {}), (100, {}), (30, {"NO_COLOR": "1"}), (30, {"TERM": "dumb"})]
)
@pytest.mark.parametrize("command", ["chat", "generate"])
def test_an_answer_in_a_real_terminal(columns: int, variables: dict[str, str], command: str, tmp_path: Path) -> None:
    pytest.importorskip("pty")
    from terminal import Terminal

    model = str(cli_fakes.base_gguf(tmp_path / "tiny.gguf"))
    answer = (
        "An answer of some words, 漢字漢字漢字漢字漢字漢字 and of https://example.org/an/address/of/many/columns.\n"
    )
    options = ["-p", "Hello"] if command == "generate" else ["--color-drafts"]
    code = f"import cli_fakes; cli_fakes.run_cli({[command, model, *options]!r}, {[answer]!r}, 0.0)"
    with Terminal([sys.executable, "-c", code], tmp_path, columns, **variables) as terminal:
        if command == "chat":
            terminal.wait_for("> ")
            terminal.type("Hello\r")
        terminal.wait_for("[ Prompt")
        raw = terminal.raw
    emulator = Emulator(columns)
    emulator.screen.set_mode(pyte.modes.LNM)
    emulator.write(raw.replace("\r\n", "\n"))
    assert "\n".join(expected(answer, columns)) in "\n".join(emulator.rows())
    assert (COLOUR in raw) == (command == "chat" and not variables)
    if "TERM" in variables:
        assert "\x1b" not in raw
