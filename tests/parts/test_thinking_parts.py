"""Thinking apart from the answer: every family's marks, whole and in any pieces, in quotes, missing, cut short."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from medusa_cli.parts.marks import ANALYSIS, FAMILIES, Channels, Marks, marks_of
from medusa_cli.parts.records import Parts
from medusa_cli.parts.splitter import Grammar, Splitter

PAIRS = [family for family in FAMILIES if not isinstance(family, Channels)]
THINK, HARMONY = FAMILIES[-1], FAMILIES[0]
START = "<|start|>assistant"
CASES = [
    # prompt's end, what is written, thinking, text
    ("", "<think>\nWhy?\n</think>\n\nBecause.", "Why?", "Because."),
    ("", "\n <think>Why?</think>Because.", "Why?", "Because."),
    ("<|assistant|><think>\n", "Why?\n</think>\n\nBecause.", "Why?", "Because."),
    ("<think>\n\n</think>\n\n", "Because.", "", "Because."),
    ("", "Because. <think>this</think> is text", "", "Because. <think>this</think> is text"),
    ("", " \n", "", " \n"),
    ("", "<thin", "", "<thin"),
    ("", "<think>half a", "half a", ""),
    ("", "<think>half </thi", "half </thi", ""),
    ("", "<think></think>Because.", "", "Because."),
    ("", "<think>`</think>` ends it. '</think>' too</think>Because.", "`</think>` ends it. '</think>' too", "Because."),
    ("", "<think>```\n</think>\nBecause.", "```", "Because."),
    ("", "<think>It is `</think>Because.", "It is `", "Because."),
    ("", "<think>a</think>b</think>c", "a", "b</think>c"),
]  # fmt: skip
CHANNELS = [
    (
        "<|channel|>analysis<|message|>Why?<|end|><|start|>assistant<|channel|>final<|message|>Because.<|return|>",
        "Why?",
        "Because.",
    ),
    ("<|channel|>final<|message|>Because.", "", "Because."),
    ("<|channel|>analysis<|message|>half a", "half a", ""),
    (
        "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant<|channel|>final<|message|> Yes.",
        "",
        "I look. Yes.",
    ),
    ("<|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>analysis<|message|>b<|end|>", "ab", ""),
    ("No channel at all", "", "No channel at all"),
]


def cut(text: str, places: list[int]) -> list[str]:
    bounds = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[one:other] for one, other in pairwise(bounds)]


def read(marks: Marks | None, prompt: str, pieces: list[str], *stop: str) -> Parts:
    splitter, parts = Splitter(Grammar(marks), prompt, stop), Parts()
    for piece in pieces:
        parts += splitter.feed(piece)
    return parts + splitter.finish()


@given(which=st.sampled_from(CASES), places=st.lists(st.integers(0, 99), max_size=9))
def test_marks_in_any_pieces(which: tuple[str, str, str, str], places: list[int]) -> None:
    prompt, written, thinking, text = which
    assert read(THINK, prompt, cut(written, places)) == Parts(text, thinking)


@given(which=st.sampled_from(CHANNELS), places=st.lists(st.integers(0, 200), max_size=9))
def test_channels_in_any_pieces(which: tuple[str, str, str], places: list[int]) -> None:
    written, thinking, text = which
    assert read(HARMONY, START, cut(written, places)) == Parts(text, thinking)


@pytest.mark.parametrize("number", range(len(PAIRS)))
def test_every_family(number: int) -> None:
    marks = PAIRS[number]
    written = f"{marks.opens}{marks.kind}Why?{marks.end}Because."
    assert read(marks, "", list(written)) == Parts("Because.", "Why?")
    assert read(marks, f"...{marks.opens}{marks.kind}", ["Why?", marks.end, "Because."]) == Parts("Because.", "Why?")
    for prompt in ("<|assistant|>", f"<|assistant|>{marks.opens}{marks.kind}"):
        whole = prompt + marks.without_thinking(prompt, tools=False)
        assert not marks.is_open(whole)
        assert marks.without_thinking(whole, tools=False) == ""
        assert read(marks, whole, ["Because."]) == Parts("Because.")


def test_a_thinking_that_is_ended_for_the_model() -> None:
    for marks, prompt, begin in ((THINK, "<think>\n", "Why"), (HARMONY, START, ANALYSIS + "Why")):
        splitter = Splitter(Grammar(marks), prompt)
        parts = splitter.feed(begin + " </thi") + splitter.end_thinking(marks.ending(tools=False))
        assert not splitter.thinking
        assert parts + splitter.feed("Because.") + splitter.finish() == Parts("Because.", "Why </thi")


def test_after_harmony_s_thinking_a_call_may_come() -> None:
    splitter = Splitter(Grammar(HARMONY), START, (), {"look": {}})
    splitter.feed(ANALYSIS + "Why")
    splitter.end_thinking(HARMONY.ending(tools=True))
    (call,) = (splitter.feed(' to=functions.look<|message|>{"at": 1}') + splitter.finish()).calls
    assert (call.name, call.arguments) == ("look", '{"at": 1}')


def test_marks_of_the_vocabulary_count_only_as_tokens() -> None:
    ids = {"<think>": 1, "</think>": 2}
    grammar = Grammar.of("<think>", lambda text: [ids[text]] if text in ids else [0] * len(text))
    splitter = Splitter(grammar, "")
    parts = splitter.feed("<think>", 1) + splitter.feed("The text </think> is no mark.", 9)
    assert splitter.thinking
    parts += splitter.feed("", 2) + splitter.feed("So: ", 9) + splitter.feed("</think>", 2) + splitter.finish()
    assert parts == Parts("So: </think>", "The text </think> is no mark.")


def test_texts_that_stop_do_so_after_the_thinking_alone() -> None:
    written = "<think>stop it</think>Do not stop it."
    for pieces in ([written], list(written)):
        assert read(THINK, "", pieces, "stop", "zzz") == Parts("Do not ", "stop it")
        assert read(THINK, "", pieces, "it</think>Do") == Parts("Do not stop it.", "stop it")
    splitter = Splitter(Grammar(THINK), "", ["stop"])
    assert splitter.feed("well, st").text == "well, "
    assert splitter.feed("ay").text == "stay"
    assert not splitter.stopped
    splitter.feed(" stop")
    assert splitter.stopped


@given(written=st.text(alphabet="<think>/`' ab\n"), places=st.lists(st.integers(0, 99), max_size=5))
def test_nothing_gets_lost(written: str, places: list[int]) -> None:
    parts = read(THINK, "", cut(written, places))
    assert parts == read(THINK, "", [written])
    found = "".join((parts.thinking + parts.text).split())
    left = "".join(written.split())
    assert found in (left, left.replace("<think>", "", 1).replace("</think>", "", 1)) or len(found) >= len(left) - 15


def test_which_marks_a_model_has() -> None:
    def none(_: str) -> bool:
        return False

    assert marks_of("{{ '<think>' }}", none) == THINK
    assert marks_of("{{ m.content.split('</think>') }}", none) == THINK
    assert marks_of("<|channel|>final<|message|>", none) == HARMONY
    assert marks_of("[THINK]", none) == PAIRS[1]
    assert marks_of("{{ messages }}", none) is None
    assert marks_of(None, {"[THINK]", "[/THINK]"}.__contains__) is not None
    assert marks_of(None, {"<think>"}.__contains__) is None
