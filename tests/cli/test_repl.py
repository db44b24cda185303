"""The chat loop as whole transcripts: what is typed, what is shown, what the engine is asked. No terminal, no model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from chat_fakes import Engine, Script, Transcript, assistant, chat, user
from cli_fakes import FakeGeneration, FakePiece

from medusa_cli.chat.repl import COMMANDS, Repl, find_command
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import MedusaError

STATS = "[ Prompt 1000.0 t/s | Generation 100.0 t/s | tokens/step 1.50 ]"


class Looping(Engine):
    """Says "la " for ever."""

    def generate(
        self, prompt: Sequence[int], settings: Any, seed: int, on_step: Any, cancellation: Any, on_prompt: Any
    ) -> Any:
        self.asked.append(self._messages)
        pieces = [FakePiece(5, "oh ", False)] + [FakePiece(6, "la ", True), FakePiece(7, "li ", False)] * 3
        on_step(pieces)
        tokens = [piece.token for piece in pieces]
        self.last = FakeGeneration(tokens, "".join(piece.text for piece in pieces), "loop", len(prompt), loop_tokens=2)
        return self.last


def test_of_a_loop_the_first_round_is_kept() -> None:
    code, shown, engine, repl = chat(["sing", "again"], engine=Looping([]))
    assert code == 0
    assert "answer oh <la >li <la >li <la >li " in shown
    assert any(line.startswith("error the answer kept repeating the same 2 tokens") for line in shown)
    assert engine.asked[1][1] == {"role": "assistant", "content": "oh la li "}
    assert repl.conversation.turns[-1]["content"] == "oh la li "


def test_two_turns_carry_the_conversation_and_end_with_ctrl_d() -> None:
    code, lines, engine, _ = chat(["Hi", "", "And?"], ["Hello", "More"], system="Be kind.")
    assert code == 0
    assert lines == ["answer He<llo>", f"stats {STATS}", "answer Mo<re>", f"stats {STATS}"]
    system = {"role": "system", "content": "Be kind."}
    assert engine.asked == [[system, user("Hi")], [system, user("Hi"), assistant("Hello"), user("And?")]]


def test_ctrl_c_keeps_what_was_generated_and_again_at_the_prompt_leaves_with_130() -> None:
    code, lines, engine, repl = chat(["Hi", "Go on", KeyboardInterrupt], [KeyboardInterrupt("Half an"), "answer."])
    assert code == 130
    assert lines[:2] == ["answer Ha<lf an>", f"stats {STATS}"]
    assert engine.asked[1] == [user("Hi"), assistant("Half an"), user("Go on")]
    assert repl.generation is not None


def test_ctrl_c_before_the_first_character_takes_the_user_turn_back() -> None:
    code, lines, engine, _ = chat(["Hi", "Again"], [KeyboardInterrupt(""), "Yes"])
    assert code == 0
    assert lines[:2] == ["answer ", "stats None"]
    assert engine.asked[1] == [user("Again")]


def test_ctrl_c_ends_piped_input_with_130() -> None:
    code, _, engine, _ = chat(["Hi", "Never asked"], [KeyboardInterrupt("Half")], interactive=False)
    assert code == 130
    assert len(engine.asked) == 1


def test_regen_answers_again_with_another_seed() -> None:
    _, _, engine, repl = chat(["Hi", "/regen", "/regen"], ["One", "Two", "Three"])
    assert engine.asked == [[user("Hi")]] * 3
    assert engine.seeds == [7, 8, 9]
    assert repl.conversation.turns == [user("Hi"), assistant("Three")]


def test_regen_keeps_the_old_answer_when_no_new_one_comes() -> None:
    for failure in (KeyboardInterrupt(""), MedusaError("")):
        _, _, _, repl = chat(["Hi", "/regen"], ["One", failure])
        assert repl.conversation.turns == [user("Hi"), assistant("One")]


def test_without_a_seed_every_answer_gets_its_own() -> None:
    _, _, engine, repl = chat(["Hi", "Hi", "Hi"], ["One", "Two", "Three"], seed=None)
    assert len(set(engine.seeds)) == 3
    assert repl.seed == engine.seeds[-1]


def test_clear_forgets_the_turns_and_keeps_the_system_prompt() -> None:
    _, lines, engine, _ = chat(["/system Rhyme.", "Hi", "/clear", "Ho"], ["One", "Two"])
    assert engine.asked[1] == [{"role": "system", "content": "Rhyme."}, user("Ho")]
    assert "note Started a new conversation." in lines


def test_system_shows_sets_and_removes() -> None:
    _, lines, _, repl = chat(["/system", '/system Say "no"', "/system", '/system ""', "/system"])
    assert lines == [
        "show there is no system prompt",
        "note Set the system prompt.",
        'show system prompt: Say "no"',
        "note Removed the system prompt.",
        "show there is no system prompt",
    ]
    assert repl.conversation.prompt(0) == []


def test_set_changes_sampling_for_the_next_answer() -> None:
    _, lines, engine, repl = chat(["/set temp 0", "/set top_k 5", "/set seed -1", "/set accept greedy", "Hi"], ["One"])
    used = engine.settings[0]
    assert (used.temperature, used.top_k, used.seed, used.accept_kind) == (0.0, 5, None, "greedy")
    assert lines[0] == "note temp is 0."
    assert repl.settings.repeat_penalty == 1.0


def test_a_rule_that_the_temperature_rules_out_gives_way_to_the_default() -> None:
    _, lines, engine, _ = chat(
        ["/set temp 0.5", "/set accept rejection", "Hi", "/set temp 0", "Hi", "/set accept nucleus"], ["One", "Two"]
    )
    assert [used.accept_kind for used in engine.settings] == ["rejection", "greedy"]
    assert "error nucleus needs a temperature above 0: /set temp 0.7" in lines


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/set temp hot", "temp takes a number, not 'hot'"),
        ("/set temp -1", "temp takes a number from 0 to 100, not -1"),
        ("/set temp nan", "temp takes a number from 0 to 100, not nan"),
        ("/set top-k 2.5", "top-k takes a whole number, not '2.5'"),
        ("/set temp", "/set temp needs a value"),
        ("/set color blue", "no parameter 'color'"),
        ("/set accept maybe", "accept takes greedy, exact, rejection, typical, nucleus"),
        ("/set accept greedy", "greedy needs temperature 0"),
        ("/save", "/save needs a file name"),
        ("/load nowhere.json", "no such file: nowhere.json"),
        ("/stats", "there is no answer"),
        ("/regen", "there is no message to answer again"),
        ("/frobnicate", "no command /frobnicate"),
    ],
)
def test_a_bad_command_is_one_line_and_the_chat_goes_on(line: str, message: str) -> None:
    code, lines, engine, _ = chat([line, "Hi"], ["One"])
    assert code == 0
    assert lines[0].startswith(f"error {message}")
    assert engine.asked == [[user("Hi")]]


def test_a_bad_command_ends_piped_input() -> None:
    with pytest.raises(MedusaError, match="takes a number"):
        chat(["/set temp hot", "Hi"], ["One"], interactive=False)


def test_text_that_begins_with_a_path_is_no_command() -> None:
    assert find_command("/usr/bin is what?") is None
    assert find_command("/help\nme") is None
    assert find_command(" /set  temp 1 ") == ("/set", "temp 1")
    assert find_command("/clear") == ("/clear", "")


@pytest.mark.parametrize("line", ["/exit", "/bye", "/quit"])
def test_exit_leaves_with_0(line: str) -> None:
    code, lines, _, _ = chat([line, "Hi"])
    assert (code, lines) == (0, [])


def test_help_lists_every_command() -> None:
    _, lines, _, _ = chat(["/help", "/?"])
    assert lines[0] == lines[1]
    for command in COMMANDS.values():
        assert command.usage in lines[0]
    assert '"""' in lines[0]
    assert "Ctrl-C" in lines[0]


def test_stats_show_the_last_answer() -> None:
    _, lines, _, _ = chat(["Hi", "/stats"], ["Hello"])
    for text in ("tokens per step   1.50 over 2 steps", "40%  10%", "seed              7", "of 1000 tokens", "eos"):
        assert text in lines[-1]


@pytest.mark.parametrize(
    ("typed", "sent"),
    [
        (['"""one', "two", 'three"""'], "one\ntwo\nthree"),
        (['"""', "/help", '"""'], "/help"),
        (['"""one line"""'], "one line"),
        (['"""cut', "off", EOFError], "cut\noff"),
    ],
)
def test_fences_make_one_message_of_several_lines(typed: list[str | type[BaseException]], sent: str) -> None:
    _, _, engine, _ = chat(typed, ["One"])
    assert engine.asked == [[user(sent)]]


def test_an_error_at_the_terminal_is_shown_and_takes_the_turn_back() -> None:
    code, lines, engine, _ = chat(["Hi", "Ho"], [MedusaError(""), "One"])
    assert code == 0
    assert lines[0].startswith("error")
    assert engine.asked[1] == [user("Ho")]


def test_what_came_before_an_error_is_kept() -> None:
    code, lines, engine, repl = chat(["Hi", "Ho"], [MedusaError("lost"), "One"])
    assert code == 0
    assert sum(line.startswith("error lost") for line in lines) == 1
    assert engine.asked[1] == [user("Hi"), assistant("lost"), user("Ho")]
    assert repl.conversation.turns[-1] == assistant("One")


def test_an_internal_error_is_not_swallowed() -> None:
    with pytest.raises(ZeroDivisionError):
        chat(["Hi"], [ZeroDivisionError("")])


def test_a_full_context_goes_on_without_the_oldest_messages() -> None:
    """The engine counts characters: 1,000 of them fit, 125 are kept for an answer, and a cut leaves at most 500."""
    said = [letter * 200 for letter in "abcdef"]
    code, lines, engine, repl = chat([*said, "/context"], ["x" * 20] * 6, system="s" * 10)
    assert code == 0
    (note,) = [line for line in lines if line.startswith("note")]
    assert note.startswith("note The context of 1000 tokens is full: the model no longer sees the oldest 6 messages")
    for asked, first in zip(engine.asked, "aaaadd", strict=True):
        assert asked[0] == {"role": "system", "content": "s" * 10}
        assert asked[1] == user(first * 200)
        assert asked[-1]["role"] == "user"
    assert [len(asked) for asked in engine.asked] == [2, 4, 6, 8, 4, 6]
    assert lines[-1].startswith("show 670 of 1000 tokens (67%): 12 messages, the oldest 6 left out")
    assert [turn["content"][0] for turn in repl.conversation.turns[::2]] == list("abcdef")


def test_what_was_left_out_is_saved_and_comes_back_where_it_fits(tmp_path: Path) -> None:
    said = [letter * 200 for letter in "abcde"]
    file = tmp_path / "chat.json"
    _, _, _, repl = chat([*said, f"/save {file}", "/clear", "Hi"], ["x" * 20] * 6)
    assert len(json.loads(file.read_text(encoding="utf-8"))["messages"]) == 10
    assert repl.conversation.left_out == 0
    larger = Engine(["One"])
    larger.n_ctx = 4000
    _, _, engine, _ = chat([f"/load {file}", "And?"], engine=larger)
    assert len(engine.asked[0]) == 11


def test_a_message_of_more_than_half_the_context_is_refused_where_others_would_leave() -> None:
    code, lines, engine, repl = chat(["x" * 1000, "x" * 600, "y" * 600, "Hi"], ["One"] * 3)
    assert code == 0
    assert lines[0].startswith("error the message has 1000 tokens, the context holds 1000: shorten the message")
    assert engine.asked[0] == [user("x" * 600)]  # it fits
    errors = [line for line in lines if line.startswith("error")]
    assert errors[1].startswith("error the message has 600 tokens, more than half of the context of 1000, and older")
    assert engine.asked[1] == [user("x" * 600), assistant("One"), user("Hi")]
    assert len(repl.conversation.turns) == 4


def test_a_first_message_may_leave_little_room() -> None:
    _, _, engine, _ = chat(["x" * 990], ["One"])
    assert engine.asked == [[user("x" * 990)]]


def test_a_message_that_is_taken_back_leaves_what_the_model_sees() -> None:
    _, lines, engine, repl = chat(
        [*("a" * 200, "b" * 200, "c" * 200, "d" * 300), "/context"], ["x"] * 3 + [KeyboardInterrupt("")]
    )
    assert len(engine.asked[3]) < 7
    assert repl.conversation.left_out == 0
    assert lines[-1].startswith("show 603 of 1000")


def test_an_answer_that_fills_the_context_is_kept_and_said() -> None:
    _, lines, _, repl = chat(["Hi", "Ho"], engine=Engine(["Lon", "Sho"], stop_reason="context_full"))
    first, second = (line for line in lines if line.startswith("error"))
    assert (
        first
        == "error the context of 1000 tokens is full, so the answer stops here: start with a larger -c for longer ones"
    )
    assert second.startswith("error the context of 1000 tokens is full, so the answer stops here: /continue goes on")
    assert repl.conversation.turns == [user("Hi"), assistant("Lon"), user("Ho"), assistant("Sho")]


class Unfinished(Engine):
    """Answers that stop at a limit. prompts: the token ids that it was given."""

    def __init__(self, answers: Sequence[str | BaseException], stop_reason: str = "length") -> None:
        super().__init__(answers, stop_reason)
        self.prompts: list[list[int]] = []

    def generate(self, prompt: Sequence[int], *more: Any, **named: Any) -> Any:
        self.prompts.append(list(prompt))
        return super().generate(prompt, *more, **named)


def test_an_answer_goes_on_from_its_tokens() -> None:
    asked = Unfinished(["Long", " and", " one", "some"])
    code, lines, _, repl = chat(["/continue", "Hi", "/continue", "/continue", "Ho"], engine=asked)
    assert code == 0
    assert lines[0].startswith("error there is no answer to continue")
    # "Hi" is two tokens, and each piece of an answer is tokens 1 and 2.
    assert asked.prompts[:3] == [[0, 0], [0, 0, 1, 2], [0, 0, 1, 2, 1, 2]]
    assert repl.conversation.turns == [user("Hi"), assistant("Long and one"), user("Ho"), assistant("some")]


def test_a_continued_answer_that_fails_or_ends_stays() -> None:
    engine = Unfinished(["Long", MedusaError("")])
    _, lines, _, repl = chat(["Hi", "/continue"], engine=engine)
    assert repl.conversation.turns == [user("Hi"), assistant("Long")]
    engine.answers = [KeyboardInterrupt(""), " one"]
    repl.submit("/continue")
    repl.submit("/continue")  # it can still go on
    assert repl.conversation.turns == [user("Hi"), assistant("Long one")]
    _, lines, _, repl = chat(["Hi", "/continue"], ["Whole."])
    assert lines[-1].startswith("error the answer is complete")
    assert repl.conversation.turns == [user("Hi"), assistant("Whole.")]


def test_a_loaded_conversation_does_not_go_on_with_another_ones_answer(tmp_path: Path) -> None:
    file = tmp_path / "chat.json"
    chat(["Ho", f"/save {file}"], ["Whole."])
    _, lines, _, repl = chat(["Hi", f"/load {file}", "/continue"], engine=Unfinished(["Lo"]))
    assert lines[-1].startswith("error the answer is complete")
    assert repl.conversation.turns == [user("Ho"), assistant("Whole.")]


def test_an_answer_cut_within_a_character_goes_on_before_it() -> None:
    class Cut(Unfinished):
        """The last token is half of a character, which the end of the answer shows as it is."""

        def generate(
            self, prompt: Any, settings: Any, seed: int, on_step: Any, cancellation: Any, on_prompt: Any
        ) -> Any:
            found = super().generate(prompt, settings, seed, on_step, cancellation, on_prompt)
            on_step([FakePiece(9, "", False), FakePiece(-1, "\ufffd", False)])
            found.tokens.append(9)
            return found

    engine = Cut(["Long", " one"])
    _, _, _, repl = chat(["Hi", "/continue"], engine=engine)
    assert engine.prompts[1] == [0, 0, 1, 2]
    assert repl.conversation.turns == [user("Hi"), assistant("Long one\ufffd")]


def test_an_answer_that_fills_the_context_goes_on_without_the_oldest_messages() -> None:
    """The newest turn has 210 tokens and its answer two: with 400 a cut is needed."""
    engine = Unfinished(["x" * 20] * 3 + ["y"], "context_full")
    screen, lines = Transcript(), ["a" * 100, "b" * 100, "c" * 100, "/continue"]
    reader = Script(lines[:3], True)
    repl = Repl(engine, reader, screen, Settings(temperature=0.7, seed=7), None)  # type: ignore[arg-type]
    repl.run()
    engine.n_ctx = 350
    repl.submit("/continue")
    assert engine.prompts[-1][-2:] == [1, 2]
    assert engine.asked[-1] == [user("c" * 100)]
    assert repl.conversation.turns[-1] == assistant("x" * 20 + "y")


# --- files in a message ----------------------------------------------------------------------------
