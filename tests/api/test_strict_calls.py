"""Calls of strict tools, on a made-up model in the real engine that would write other arguments."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import forced_model as forced
import pytest

from medusa_cli.api.model import Model
from medusa_cli.decoding.forced_calls import strict_calls
from medusa_cli.support.errors import MedusaError

PLAIN = "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}<|assistant|>"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FREE = ["town", '": 3}']
QWEN = (
    "{# <tool_call> #}",
    ["Wait.", "<tool_call>", '{"name": "weather", "arguments": ', '{"', *FREE, "}", "</tool_call>"],
)
SHAPES = {
    "a mark": (*QWEN, "Done."),
    "a token that is head and arguments": (
        QWEN[0],
        ["Wait.", "<tool_call>", '{"name": "weather", "arguments', '": {"', *FREE, "}", "</tool_call>"],
        "Done.",
    ),
    "a fence": (
        QWEN[0],
        ["```json\n", '{"name": "weather", "arguments":', " {", '"town": 3}', "}", "\n```\n"],
        "Done.",
    ),
    "no mark": ('{# "parameters" #}', ['{"name": "weather", ', '"parameters":', " {", '"town": 3}', "}"], ""),
    "a list": ("{# [TOOL_CALLS] #}", ["[TOOL_CALLS]", '[{"name": "weather", "arguments"', ': {"', *FREE, "}]"], ""),
    "a name and a mark": ("{# [TOOL_CALLS][ARGS] #}", ["[TOOL_CALLS]", "weather", "[ARGS]", '{"', *FREE], ""),
}
LATER = [', "arguments": {"', *FREE, "}]"]
MARKS = ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", forced.ASSISTANT]


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, **more}}


def model(path: Path, shape: str = "a mark", **options: Any) -> Model:
    hint, call, after = SHAPES[shape]
    # After arguments by the schema, the model goes on as after those that it would have written.
    said = [[forced.ASSISTANT, *call, *filter(None, [after]), "</s>"], [" ", "</s>"]]
    if (ends := [text for text in call if text.startswith("}")]) and call[-len(ends) - 1 :] != FREE[-1:]:
        said.append(["<0x7D>", ends[0]])
    return Model(forced.write_forced_model(path / "m.gguf", PLAIN + hint, said, MARKS), quiet=True, **options)


@pytest.mark.parametrize("drafts", [{"no_spec": True}, {}, {"recycling": True}])
@pytest.mark.parametrize("shape", SHAPES)
def test_arguments_follow_the_schema_and_all_else_is_free(tmp_path: Path, shape: str, drafts: dict[str, bool]) -> None:
    before, after = ("Wait." if "Wait." in SHAPES[shape][1] else "", SHAPES[shape][2])
    with model(tmp_path, shape, **drafts) as opened:
        free = opened.generate("Hi", tools=[tool()])
        assert [json.loads(call.arguments) for call in free.calls] == [{"town": 3}]
        with opened.stream("Hi", tools=[tool(strict=True)]) as stream:
            pieces = [piece for step in stream for piece in step.call_pieces]
        strict = stream.answer
        assert (free.text, strict.text) == (before + after, before + after)
        assert strict.stop_reason == "eos"
        (call,) = strict.calls
        found = json.loads(call.arguments)
        assert call.name == "weather"
        assert found["city"] in ("Oslo", "Rome")
        assert 1 <= found["days"] <= 7
        assert {piece.id for piece in pieces} == {call.id}
        assert "".join(piece.arguments for piece in pieces) == call.arguments


def test_drawn_arguments(tmp_path: Path) -> None:
    with model(tmp_path, "a name and a mark") as opened:
        for seed in range(5):
            (call,) = opened.generate("Hi", tools=[tool(strict=True)], temperature=2.0, seed=seed).calls
            assert set(json.loads(call.arguments)) == {"city", "days"}


@pytest.mark.parametrize("most", [1, 2, 4, 6, 9, 14])
def test_a_limit_anywhere(tmp_path: Path, most: int) -> None:
    with model(tmp_path) as opened:
        cut = opened.generate("Hi", tools=[tool(strict=True)], max_tokens=most)
        assert (cut.stop_reason, len(cut.tokens)) == ("length", most)


def test_the_one_call_that_there_may_be(tmp_path: Path) -> None:
    with model(tmp_path) as opened:
        job = opened.job_of_tokens(opened.tokens("Hi", tools=[tool()]), [tool(strict=True)], False, {}, one_call=True)
        answer = job.run()
        assert (answer.text, answer.stop_reason, len(answer.calls)) == ("Wait.", "stop", 1)


def test_several_calls_of_which_some_are_strict(tmp_path: Path) -> None:
    said = [
        [
            forced.ASSISTANT,
            "[TOOL_CALLS]",
            '[{"name": "time", "arguments": ',
            '{"zone',
            '": 3}}, {"name": "weather"',
            *LATER,
        ],
        ["<0x7D>", "}]"],
        [" ", "</s>"],
    ]
    path = forced.write_forced_model(tmp_path / "m.gguf", PLAIN + "{# [TOOL_CALLS] #}", said, MARKS)
    tools = [tool(strict=True), {"type": "function", "function": {"name": "time"}}]
    with Model(path, quiet=True) as opened, opened.stream("Hi", tools=tools) as stream:
        pieces = [piece for step in stream for piece in step.call_pieces]
    first, second = stream.answer.calls
    assert (first.name, json.loads(first.arguments)) == ("time", {"zone": 3})
    assert (second.name, set(json.loads(second.arguments))) == ("weather", {"city", "days"})
    for call in (first, second):
        assert "".join(piece.arguments for piece in pieces if piece.id == call.id) == call.arguments


def test_harmony(tmp_path: Path) -> None:
    call = ["<|channel|>", "commentary to=functions.weather ", "<|constrain|>", "json", "<|message|>", '{"', *FREE]
    said = [["assistant", *call, "<|call|>"], ["<0x7D>", "<|call|>", "</s>"]]
    path = forced.write_forced_model(tmp_path / "m.gguf", forced.CHANNELS, said, forced.MARKS)
    with Model(path, quiet=True) as opened:
        (free,) = opened.generate("Hi", tools=[tool()]).calls
        (call_,) = opened.generate("Hi", tools=[tool(strict=True)]).calls
        assert json.loads(free.arguments) == {"town": 3}
        assert set(json.loads(call_.arguments)) == {"city", "days"}


def test_the_model_does_not_read_that_a_tool_is_strict(tmp_path: Path) -> None:
    with model(tmp_path) as opened:
        assert opened.tokens("Hi", tools=[tool(strict=True)]) == opened.tokens("Hi", tools=[tool()])


@pytest.mark.parametrize(
    "template",
    ["<tool_call> <function=", "<tool_call> <arg_key>", "<|tool_call>call:", "<|tool_list_start|>", "｜DSML｜"],
)
def test_arguments_that_are_not_json_stay_free(template: str) -> None:
    assert list(strict_calls(PLAIN, [tool(strict=True)])) == ["weather"]
    assert strict_calls(PLAIN, [tool(strict=False)]) == {}
    assert strict_calls(template, [tool(strict=True)]) == {}


def test_a_schema_that_cannot_be_enforced() -> None:
    wrong = {"name": "f", "parameters": {"type": "array", "uniqueItems": True}, "strict": True}
    with pytest.raises(MedusaError, match=r"tools: the tool 'f': .*'uniqueItems'"):
        strict_calls(PLAIN, [wrong])
