"""Answers by schema and grammar from Python, on made-up models in the real engine; the thinking before them is free."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forced_model as forced
import pytest

from medusa_cli.api.model import Model
from medusa_cli.decoding.forced_calls import written_call
from medusa_cli.support.errors import MedusaError

THOUGHT = "So the user says hello"
ROLES = ["<|user|>", "<|system|>", forced.ASSISTANT]
JSON = '{"reply":"Hello to you!"}'
SCHEMA = {"type": "object", "properties": {"reply": {"enum": ["Hello to you!", "Bye!"]}}, "required": ["reply"]}
SAID = {
    "switched": (forced.SWITCHED, [forced.THINKING, forced.AFTER_A_LINE], ROLES),
    "opened": (forced.OPENED, [[forced.NEWLINE, *forced.THOUGHTS, "</think>", *forced.REPLY]], ROLES),
    "closed": (forced.CLOSED, [forced.THINKING, ["\n</think>\n\n", forced.REPLY[0]]], ROLES),
}


def model(path: Path, shape: str, **options: Any) -> Model:
    template, said, control = SAID[shape]
    return Model(forced.write_forced_model(path / f"{shape}.gguf", template, said, control), quiet=True, **options)


@pytest.mark.parametrize("drafts", [{"no_spec": True}, {}, {"recycling": True}])
@pytest.mark.parametrize("shape", SAID)
def test_the_grammar_holds_behind_the_thinking(tmp_path: Path, shape: str, drafts: dict[str, bool]) -> None:
    with model(tmp_path, shape, **drafts) as opened:
        answer = opened.generate("Hi", json_schema=SCHEMA)
        assert (answer.thinking, answer.stop_reason) == (THOUGHT, "eos")
        assert json.loads(answer.text)["reply"] in ("Hello to you!", "Bye!")
        assert answer.text == json.dumps(json.loads(answer.text), separators=(",", ":"))
        short = opened.generate("Hi", json_schema=SCHEMA, think=2)
        assert short.stop_reason == "eos"
        assert json.loads(short.text)["reply"] in ("Hello to you!", "Bye!")
        off = opened.generate("Hi", json_schema=SCHEMA, thinking=False)
        assert (off.thinking, off.stop_reason) == ("", "eos")
        assert json.loads(off.text)["reply"] in ("Hello to you!", "Bye!")
        with opened.stream("Hi", json_schema=SCHEMA) as stream:
            pieces = list(stream)
        assert "".join(piece.text for piece in pieces) == answer.text
        assert "".join(piece.thinking for piece in pieces) == THOUGHT


def test_a_model_that_does_not_think_after_all(tmp_path: Path) -> None:
    said = [[forced.ASSISTANT, *forced.REPLY]]
    path = forced.write_forced_model(tmp_path / "m.gguf", forced.SWITCHED, [*said, ["<think>", "</think>"]], ROLES)
    with Model(path, quiet=True) as opened:
        answer = opened.generate("Hi", grammar='root ::= "{" [a-z]{2} "}"')
        assert len(answer.text) == 4
        assert (answer.thinking, answer.text[0], answer.text[-1]) == ("", "{", "}")
        with opened.stream("Hi", grammar='root ::= "{" [a-z]{2} "}"') as stream:
            assert "".join(piece.text for piece in stream) == answer.text


def test_what_is_wrong_is_one_line(tmp_path: Path) -> None:
    with model(tmp_path, "switched") as opened:
        for options, says in (
            ({"json_schema": {"not": {}}}, "'not' cannot be enforced"),
            ({"json_schema": 3}, "json_schema takes a schema"),
            ({"json_schema": "{"}, "the JSON schema is not JSON"),
            ({"grammar": "root ::= a"}, "uses rule a"),
            ({"grammar": 3}, "grammar takes text"),
            ({"grammar": 'root ::= "a"', "json_schema": True}, "a schema is a grammar already"),
            ({"grammar": 'root ::= "a"', "ignore_eos": True}, "leave ignore_eos out"),
            ({"grammar": 'root ::= "a"', "accept": "nucleus", "temperature": 1.0}, "looks past"),
        ):
            with pytest.raises(MedusaError) as error:
                opened.generate("Hi", **options)
            assert says in str(error.value)
            assert "\n" not in str(error.value)


def test_a_limit_cuts_it_short(tmp_path: Path) -> None:
    with model(tmp_path, "switched") as opened:
        cut = opened.generate("Hi", json_schema=SCHEMA, thinking=False, max_tokens=4)
        assert cut.stop_reason == "length"


TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": {"properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "time"}},
]


@pytest.mark.parametrize(
    ("template", "opening", "closing"),
    [
        ("<tool_call> {{ tools }}", "<tool_call>\n", "\n</tool_call>"),
        ("{{ messages }}", "<tool_call>\n", "\n</tool_call>"),
        ('"parameters" {{ tools }}', "", ""),
        ("[TOOL_CALLS] {{ tools }}", "[TOOL_CALLS]", ""),
        ("<TOOLCALL> {{ tools }}", "<TOOLCALL>", "</TOOLCALL>"),
    ],
)
def test_calls_that_have_to_be(template: str, opening: str, closing: str) -> None:
    found = written_call(template, TOOLS, "time")
    assert (found.opening, found.closing) == (opening, closing)
    assert written_call(template, TOOLS, "") is not None


def test_calls_that_cannot_be_enforced() -> None:
    for template, name, says in (
        ("<|channel|> <|message|> tools", "time", "cannot be enforced"),
        ("<tool_call>", "none", "there is no tool 'none'"),
    ):
        with pytest.raises(MedusaError, match=says):
            written_call(template, TOOLS, name)
