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

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}{{ m.content }}{% endfor %}<|assistant|>"
)
QWEN = TEMPLATE + "{# <tool_call> #}"
MISTRAL = TEMPLATE + "{# [TOOL_CALLS] #}"
SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Oslo", "Rome"]}, "days": {"type": "integer", "minimum": 1, "maximum": 7}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
FREE = '{"name": "weather", "arguments": {"town": 3}}'
AROUND = [[forced.ASSISTANT, "Wait.", "<tool_call>", FREE, "</tool_call>", "Done.", "</s>"], ["\n", FREE]]


def tool(**more: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "weather", "parameters": SCHEMA, **more}}


def qwen(path: Path, **options: Any) -> Model:
    marks = ["<tool_call>", "</tool_call>", forced.ASSISTANT]
    return Model(forced.write_forced_model(path / "m.gguf", QWEN, AROUND, marks), quiet=True, **options)


@pytest.mark.parametrize("drafts", [{"no_spec": True}, {}, {"recycling": True}])
def test_calls_follow_the_schema_and_the_text_around_is_free(tmp_path: Path, drafts: dict[str, bool]) -> None:
    with qwen(tmp_path, **drafts) as model:
        free = model.generate("Hi", tools=[tool()])
        assert (free.text, [json.loads(call.arguments) for call in free.calls]) == ("Wait.Done.", [{"town": 3}])
        with model.stream("Hi", tools=[tool(strict=True)]) as stream:
            pieces = [piece for step in stream for piece in step.call_pieces]
        strict = stream.answer
        assert (strict.text, strict.stop_reason) == ("Wait.Done.", "eos")
        (call,) = strict.calls
        found = json.loads(call.arguments)
        assert call.name == "weather"
        assert found["city"] in ("Oslo", "Rome")
        assert 1 <= found["days"] <= 7
        assert "".join(piece.arguments for piece in pieces) == call.arguments
        assert model.generate("Hi", tools=[tool(strict=True)], temperature=1.0, seed=3).calls[0].name == "weather"


def test_a_limit_within_a_call(tmp_path: Path) -> None:
    with qwen(tmp_path) as model:
        cut = model.generate("Hi", tools=[tool(strict=True)], max_tokens=5)
        assert (cut.stop_reason, cut.calls, len(cut.tokens)) == ("length", (), 5)


def test_after_the_one_call_that_there_may_be(tmp_path: Path) -> None:
    with qwen(tmp_path) as model:
        tokens = model.tokens("Hi", tools=[tool()])
        job = model.job_of_tokens(tokens, [tool(strict=True)], False, {}, one_call=True)
        answer = job.run()
        assert (answer.text, answer.stop_reason, len(answer.calls)) == ("Wait.", "stop", 1)


def test_a_list_may_have_several_calls(tmp_path: Path) -> None:
    said = [[forced.ASSISTANT, "[TOOL_CALLS]", FREE]]
    path = forced.write_forced_model(tmp_path / "m.gguf", MISTRAL, said, ["[TOOL_CALLS]", forced.ASSISTANT])
    tools = [tool(strict=True), {"type": "function", "function": {"name": "time", "strict": True}}]
    with Model(path, quiet=True) as model:
        options: dict[str, Any] = {"max_tokens": 100}
        (call,) = model.job_of_tokens(model.tokens("Hi"), tools, False, options, one_call=True).run().calls
        assert (call.name, call.arguments) == ("time", "{}")
        endless = model.job_of_tokens(model.tokens("Hi"), tools, False, options).run()
        assert endless.stop_reason == "length"
        one = '{"name": "time", "arguments": {}}'
        assert endless.text.startswith(f"[TOOL_CALLS][{one}, {one}")


def test_the_model_does_not_read_that_a_tool_is_strict(tmp_path: Path) -> None:
    with qwen(tmp_path) as model:
        assert model.tokens("Hi", tools=[tool(strict=True)]) == model.tokens("Hi", tools=[tool()])


def test_where_calls_stay_free() -> None:
    strict, bare = [tool(strict=True)], [tool(strict=False)]
    assert strict_calls(QWEN, lambda mark: mark == "<tool_call>", strict, False) is not None
    for template, is_token, tools in (
        (QWEN, True, bare),
        (QWEN, False, strict),  # the mark is several tokens
        (QWEN + "<function=", True, strict),
        ('"parameters" {{ tools }}', True, strict),  # calls have no mark
        ("<|channel|> <|message|> tools", True, strict),
    ):
        assert strict_calls(template, lambda _, found=is_token: found, tools, False) is None  # type: ignore[misc]


def test_a_schema_that_cannot_be_enforced() -> None:
    wrong = {"name": "f", "parameters": {"type": "array", "uniqueItems": True}, "strict": True}
    with pytest.raises(MedusaError, match=r"tools: the tool 'f': .*'uniqueItems'"):
        strict_calls(QWEN, lambda _: True, [wrong], False)
