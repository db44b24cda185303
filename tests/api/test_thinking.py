"""Thinking from Python on a made-up model in the real engine: on, off, with a budget, cut short, plain and drafted."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import forced_model as forced
import pytest
from fixtures import tiny_base, tiny_recurrent

from medusa_cli.api.arguments import answer_settings
from medusa_cli.api.model import Model
from medusa_cli.decoding.options import Effort
from medusa_cli.decoding.thinking import Thinking
from medusa_cli.support.errors import MedusaError

REPLY, THOUGHT = "Hello to you!", "So the user says hello"
ROLES = ["<|user|>", "<|system|>", forced.ASSISTANT]
SAID = {
    "switched": (forced.SWITCHED, [forced.THINKING, forced.AFTER_A_LINE], ROLES),
    "opened": (forced.OPENED, [[*forced.THOUGHTS, "</think>", *forced.REPLY]], ROLES),
    "closed": (forced.CLOSED, [forced.THINKING, ["\n</think>\n\n", forced.REPLY[0]]], ROLES),
}


def model(path: Path, shape: str, **options: Any) -> Model:
    template, said, control = SAID[shape]
    if shape == "opened":  # the line's end is the template's here, and after "</think>" it is the end's
        said = [[forced.NEWLINE, *said[0]]]
    return Model(forced.write_forced_model(path / f"{shape}.gguf", template, said, control), quiet=True, **options)


@pytest.fixture(scope="module")
def switched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    with model(tmp_path_factory.mktemp("model"), "switched") as found:
        yield found


def test_the_thinking_is_no_part_of_the_text(switched: Model) -> None:
    answer = switched.generate("Hi")
    assert (answer.text, answer.thinking, answer.stop_reason) == (REPLY, THOUGHT, "eos")
    assert (answer.thinking_tokens, len(answer.tokens)) == (7, 11)  # with both marks
    parts = answer.stats["parts"]
    assert (parts["thinking"]["tokens"], parts["answer"]["tokens"]) == (7, 4)
    with switched.stream("Hi") as stream:
        pieces = list(stream)
    assert "".join(piece.text for piece in pieces) == REPLY
    assert "".join(piece.thinking for piece in pieces) == THOUGHT
    assert [piece.thought for piece in pieces] == [True] * 7 + [False] * 4


def test_a_raw_text_has_no_parts(switched: Model) -> None:
    answer = switched.generate("<|assistant|>", raw=True)
    assert (answer.text, answer.thinking) == (f"<think>{THOUGHT}</think>{REPLY}", "")


def test_off(switched: Model) -> None:
    for options in ({"thinking": False}, {"think": 0}):
        answer = switched.generate("Hi", **options)
        assert (answer.text, answer.thinking, answer.thinking_tokens) == (REPLY, "", 0)
        assert answer.stats["parts"] is None
    with pytest.raises(MedusaError, match="the thinking is off"):
        switched.generate("Hi", thinking=False, think=5)


@pytest.mark.parametrize("drafts", [{"no_spec": True}, {}, {"recycling": True}])
@pytest.mark.parametrize("shape", ["switched", "closed"])
def test_a_budget(tmp_path: Path, shape: str, drafts: dict[str, bool]) -> None:
    with model(tmp_path, shape, **drafts) as found:
        for _ in range(2):  # the second time, drafts know what comes
            for most, thought in ((1, ""), (3, "So the"), (6, THOUGHT), (7, THOUGHT), (100, THOUGHT)):
                answer = found.generate("Hi", think=most)
                assert answer.thinking == thought
                assert answer.text == (REPLY if shape == "switched" or most > 6 else answer.text)
                assert answer.thinking_tokens == min(most, 7)
                ended = 0 if most > 6 else len(found.tokens("\n</think>\n\n", raw=True))
                assert answer.prompt_tokens == len(found.tokens("Hi")) + ended


def test_a_limit_that_cuts_the_thinking(switched: Model) -> None:
    answer = switched.generate("Hi", max_tokens=4)
    assert (answer.text, answer.thinking, answer.stop_reason) == ("", "So the user", "length")
    answer = switched.generate("Hi", max_tokens=3, think=3)
    assert (answer.text, answer.thinking, answer.stop_reason) == ("", "So the", "length")
    answer = switched.generate("Hi", max_tokens=5, think=3)
    assert (answer.text, answer.stop_reason, len(answer.tokens)) == ("Hello to", "length", 5)


def test_texts_that_stop(switched: Model) -> None:
    answer = switched.generate("Hi", stop="user")
    assert (answer.text, answer.stop_reason) == (REPLY, "eos")
    answer = switched.generate("Hi", stop=["user", " to"])
    assert (answer.text, answer.thinking, answer.stop_reason) == ("Hello", THOUGHT, "stop")
    answer = switched.generate("Hi", stop=["lo to"], think=2)
    assert (answer.text, answer.thinking, answer.stop_reason) == ("Hel", "So", "stop")


def test_a_template_that_opens_the_thinking_and_has_no_switch(tmp_path: Path) -> None:
    with model(tmp_path, "opened") as found:
        answer = found.generate("Hi")
        assert (answer.text, answer.thinking) == (REPLY, THOUGHT)
        tokens = found.tokens("Hi")
        off = found.job("Hi", None, False, {"thinking": False}).run()
        assert off.prompt_tokens == len(tokens) + len(found.tokens("</think>\n\n", raw=True))


def test_earlier_thinking_goes_through_the_template(switched: Model) -> None:
    def text(messages: Any) -> str:
        return b"".join(map(switched.token_bytes, switched.tokens(messages))).decode()

    said = {"role": "assistant", "content": REPLY, "reasoning_content": THOUGHT}
    asked: Any = {"role": "user", "content": "Hi"}
    assert THOUGHT in text([asked, said])
    assert THOUGHT not in text([asked, said, asked])
    with pytest.raises(MedusaError, match="message 1: its reasoning_content must be text"):
        switched.tokens([asked, {**said, "reasoning_content": 5}])


def test_the_cache_survives_a_thinking(switched: Model) -> None:
    asked: Any = {"role": "user", "content": "Hi"}
    first = switched.generate([asked])
    again = switched.generate([asked, {"role": "assistant", "content": REPLY, "reasoning_content": THOUGHT}, asked])
    assert again.cached_tokens == first.prompt_tokens
    limited = switched.generate([asked], think=3)
    assert limited.cached_tokens > 0
    assert switched.generate([asked], think=3).cached_tokens >= limited.prompt_tokens - 4 - 10


@pytest.mark.parametrize("make", [tiny_base, tiny_recurrent])
@pytest.mark.parametrize("drafts", [{"no_spec": True}, {"lookup": True, "recycling": True}])
def test_a_budget_is_a_second_prompt(tmp_path: Path, make: Any, drafts: Any) -> None:
    """Random models, dense and recurrent, never end their thinking: the answer after it is that to the whole prompt."""
    # Marks are many tokens for these models: so that the prompts differ only where the answer begins, it has them, too.
    template = forced.OPENED.replace("{{ m.content", "{{ '<think>\n</think>' if m.role == 'assistant' }}{{ m.content")
    path = make(tmp_path / "random.gguf", chat_template=template)
    with Model(path, quiet=True, **drafts) as found, Model(path, quiet=True, no_spec=True) as plain:
        asked: Any = [{"role": "user", "content": "abc" * 8}]
        prompt = found.tokens(asked)
        answer = found.generate(asked, think=20, max_tokens=50, ignore_eos=True)
        thought = plain.generate(prompt, max_tokens=20, ignore_eos=True).tokens
        ending = plain.tokens("x\n</think>\n\n", raw=True)[len(plain.tokens("x", raw=True)) :]
        said = plain.session().generate([*prompt, *thought, *ending], max_tokens=30, ignore_eos=True).tokens
        assert answer.tokens == [*thought, *said]
        assert (answer.thinking_tokens, answer.prompt_tokens) == (20, len(prompt) + len(ending))
        # The next prompt leaves the thinking out, and begins where the last one was read or a checkpoint was taken.
        reply = {"role": "assistant", "content": "de", "reasoning_content": answer.thinking}
        again = found.generate([*asked, reply, *asked], max_tokens=2)
        assert again.cached_tokens >= len(prompt) - 16
        assert again.tokens == plain.session().generate([*asked, reply, *asked], max_tokens=2).tokens


def test_channels(tmp_path: Path) -> None:
    thinks = ["<|start|>", "assistant", "<|channel|>", "analysis", "<|message|>", *forced.THOUGHTS, "<|end|>"]
    path = forced.write_forced_model(tmp_path / "channels.gguf", forced.CHANNELS, [thinks], forced.MARKS)
    with Model(path, quiet=True) as found:
        answer = found.generate("Hi")
        assert (answer.text, answer.thinking) == ("", THOUGHT)
        # What follows a message's mark is the thinking again, now in the answer's channel.
        assert found.generate("Hi", think=3).text == THOUGHT
        assert found.generate("Hi", thinking=False).text == THOUGHT
        assert "Reasoning: high" in text_of(found, "high")
        assert "Reasoning: low" in text_of(found, Effort.low)
        assert answer_settings({"reasoning_effort": "low"}).wanted_thinking == Thinking(None, "low")
        assert "Reasoning: medium" in text_of(found, None)


def text_of(found: Model, effort: str | None) -> str:
    tokens = found.tokens("Hi", thinking=Thinking(effort=effort))
    return b"".join(map(found.token_bytes, tokens)).decode().replace("\u2581", " ")
