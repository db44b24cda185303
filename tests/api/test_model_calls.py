"""Calls of tools from Python, on a made-up model in the real engine."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import forced_model as forced
import pytest

from medusa_cli.api.answer import Piece
from medusa_cli.api.model import Model
from medusa_cli.support.errors import MedusaError

TEMPLATE = "<tool_call>{{ tools }}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
ONE, OTHER = '{"name": "now", "arguments": {"at": 1}}', '{"name": "now", "arguments": {"at": 2}}'
SAID = ["<|assistant|>", "I look. ", "<tool_call>", ONE, "</tool_call> <tool_call>", OTHER, "</tool_call>", "</s>"]
TOOLS: Any = [{"type": "function", "function": {"name": "now", "parameters": {"type": "object"}}}]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Model]:
    path = tmp_path_factory.mktemp("model") / "calls.gguf"
    with Model(forced.write_forced_model(path, TEMPLATE, [SAID], ["<|user|>", "<|assistant|>"]), quiet=True) as found:
        yield found


def test_calls_are_apart_from_the_text(model: Model) -> None:
    answer = model.generate("Hi", tools=TOOLS)
    assert answer.text == "I look. "
    assert [(call.name, json.loads(call.arguments)) for call in answer.calls] == [
        ("now", {"at": 1}),
        ("now", {"at": 2}),
    ]
    with model.stream("Hi", tools=TOOLS) as stream:
        pieces = list(stream)
    assert sum(len(piece.calls) for piece in pieces) == 2
    for call in (call for piece in pieces for call in piece.calls):
        parts = [part for piece in pieces for part in piece.call_pieces if part.id == call.id]
        assert {part.name for part in parts} == {"now"}
        assert "".join(part.arguments for part in parts) == call.arguments
    assert model.generate("Hi").text == "".join(SAID[1:-1])


def test_only_one_call(model: Model) -> None:
    pieces: list[Piece] = []
    job = model.job_of_tokens(model.tokens("Hi", tools=TOOLS), TOOLS, False, {}, one_call=True)
    answer = job.run(pieces.extend)
    assert [json.loads(call.arguments) for call in answer.calls] == [{"at": 1}]
    assert {part.id for piece in pieces for part in piece.call_pieces} == {answer.calls[0].id}
    assert (answer.text, answer.stop_reason, len(answer.tokens)) == ("I look. ", "stop", 4)


def test_tools_without_a_name(model: Model) -> None:
    with pytest.raises(MedusaError, match="tool 0 is not like"):
        model.generate("Hi", tools=[{"type": "function"}])
