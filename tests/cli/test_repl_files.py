"""Files in a chat: texts that go with a message, and transcripts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from chat_fakes import assistant, chat, user

from medusa_cli.chat.conversation import Conversation
from medusa_cli.support.errors import MedusaError


def fenced(name: Path | str, text: str, fence: str = "```") -> str:
    return f"{name}:\n{fence}\n{text}\n{fence}"


def test_files_go_with_the_next_message_and_no_other(tmp_path: Path) -> None:
    one, other = tmp_path / "one.txt", tmp_path / "two words.md"
    one.write_text("First.\n")
    other.write_text("```\ncode\n````\n", encoding="utf-8")
    code, lines, engine, _ = chat(["/read", f"/read {one}", f"/read {other}", "/read", "And?", "So?"], ["One", "Two"])
    assert code == 0
    assert lines[:4] == [
        "show no file goes with your next message: /read FILE adds one",
        f"note Read {one} (7 B, 6 tokens): it goes with your next message.",
        f"note Read {other} (14 B, 13 tokens): it goes with your next message.",
        f"show with your next message (/clear forgets them):\n{one} (7 B, 6 tokens)\n{other} (14 B, 13 tokens)",
    ]
    asked = user(f"{fenced(one, 'First.')}\n\n{fenced(other, chr(10).join(['```', 'code', '````']), '`````')}\n\nAnd?")
    assert engine.asked == [[asked], [asked, assistant("One"), user("So?")]]


@pytest.mark.parametrize("failure", [KeyboardInterrupt, MedusaError])
def test_files_of_a_message_that_is_taken_back_wait_for_the_next_one(
    tmp_path: Path, failure: type[BaseException]
) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada")
    code, lines, engine, repl = chat([f"/read {file}", "And?", "And?", "/read"], [failure(""), "Yes"])
    assert code == 0
    assert "note What was read with /read stays for your next message; /clear forgets it." in lines
    assert engine.asked[0] == engine.asked[1] == [user(f"{fenced(file, 'Dear Ada')}\n\nAnd?")]
    assert lines[-1].startswith("show no file")
    assert repl.screen.reading.told == 2  # type: ignore[attr-defined]


def test_a_half_answer_keeps_the_files_in_the_conversation(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada")
    _, _, engine, repl = chat([f"/read {file}", "And?", "So?"], [KeyboardInterrupt("Half"), "Yes"])
    assert engine.asked[1] == [user(f"{fenced(file, 'Dear Ada')}\n\nAnd?"), assistant("Half"), user("So?")]
    assert repl.files == []


def test_clear_forgets_files(tmp_path: Path) -> None:
    file = tmp_path / "letter.txt"
    file.write_text("Dear Ada")
    _, _, engine, _ = chat([f"/read {file}", "/clear", "Hi"], ["One"])
    assert engine.asked == [[user("Hi")]]


def test_a_file_that_does_not_fit_is_refused_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("long.txt").write_text("x" * 600)
    Path("small.txt").write_text("y" * 300)
    code, lines, engine, repl = chat(["/read long.txt", "/read long.txt", "/read small.txt"])
    assert code == 0
    assert lines[0].startswith("note Read long.txt")
    assert lines[1].startswith("error the message with long.txt and long.txt has 1238 tokens, the context holds 1000: ")
    assert [one.tokens for one in repl.files] == [600, 300]
    asked = ["a" * 300, "/read long.txt", "/read small.txt", "b"]
    _, lines, engine, repl = chat(asked, ["One", "Two"], system="Rhyme.")
    assert lines[2].startswith("error the message with long.txt and the system prompt have 624 tokens, more than half")
    assert engine.asked[1][-1] == user(f"{fenced('small.txt', 'y' * 300)}\n\nb")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty"),
        (b"caf\xe9", "is not UTF-8 text (byte 3)"),
        (b"\x7fELF\0", "is not text (byte 4 is zero)"),
        (b"x" * ((1 << 20) + 1), "has 1.0 MB, more than a context of 1000 tokens holds"),
    ],
)
def test_what_is_no_text_for_a_message_is_one_line(tmp_path: Path, content: bytes, message: str) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    _, lines, _, repl = chat([f"/read {file}"])
    assert lines[0].startswith(f"error {file} {message}")
    assert repl.files == []


def test_what_is_no_file_for_a_message_is_one_line(tmp_path: Path) -> None:
    names = [tmp_path, tmp_path / "nowhere", tmp_path / ("x" * 300), "/dev/null", "a\0b"]
    _, lines, _, _ = chat([f"/read {name}" for name in names])
    for line, message in zip(
        lines, ("is a directory", "no such file", "file name too long", "not a regular file", "no such"), strict=True
    ):
        assert line.startswith("error ")
        assert message in line


def test_save_and_load_carry_the_conversation_over(tmp_path: Path) -> None:
    file = tmp_path / "my chat.json"
    _, lines, _, _ = chat(["Hi", f"/save {file}", "/system No.", f"/save {file}"], ["Héllo"], system="Be kind.")
    assert lines[2] == f"note Saved 2 turns to {file}."
    saved = json.loads(file.read_text(encoding="utf-8"))
    assert saved["model"] == "fake.gguf"
    assert saved["messages"] == [{"role": "system", "content": "No."}, user("Hi"), assistant("Héllo")]
    assert [entry.name for entry in tmp_path.iterdir()] == [file.name]

    _, lines, engine, _ = chat([f"/load {file}", "And?"], ["One"])
    assert lines[:2] == [f"note Loaded 2 turns from {file}.", "note assistant: Héllo"]
    assert engine.asked[0] == [{"role": "system", "content": "No."}, user("Hi"), assistant("Héllo"), user("And?")]


def test_save_never_overwrites_another_kind_of_file(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("mine")
    _, lines, _, _ = chat([f"/save {file}"])
    assert lines[0].startswith(f"error {file} exists and is not a medusa transcript")
    assert file.read_text() == "mine"


def test_save_into_a_missing_folder_is_an_error(tmp_path: Path) -> None:
    _, lines, _, _ = chat([f"/save {tmp_path / 'no' / 'chat.json'}"])
    assert lines[0].startswith("error ")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        "not json",
        "[]",
        '{"messages": []}',
        '{"format": "medusa-transcript", "version": 2, "messages": []}',
        '{"format": "medusa-transcript", "version": 1, "messages": {}}',
        '{"format": "medusa-transcript", "version": 1, "messages": [{"role": "user"}]}',
        '{"format": "medusa-transcript", "version": 1, "messages": [{"role": "assistant", "content": "x"}]}',
    ],
)
def test_a_bad_transcript_leaves_the_conversation_as_it_was(tmp_path: Path, content: str) -> None:
    file = tmp_path / "chat.json"
    file.write_text(content)
    _, lines, _, repl = chat(["Hi", f"/load {file}"], ["One"])
    assert lines[-1].startswith(f"error {file}")
    assert repl.conversation.turns == [user("Hi"), assistant("One")]


def test_transcripts_survive_a_round_trip(tmp_path: Path) -> None:
    conversation = Conversation("S\n", [user('"""\u2028\x00'), assistant("😀")])
    conversation.save(tmp_path / "a.json", "m")
    assert Conversation.load(tmp_path / "a.json") == conversation
