"""Answers by schema or grammar, and calls that have to be, through the endpoints."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from server_fakes import FakeModel
from server_run import Running, serving

from medusa_cli.api.model import Model

openai = pytest.importorskip("openai")
pydantic = pytest.importorskip("pydantic")

ASK: Any = [{"role": "user", "content": "Anna is 34 and lives in Oslo. Fill in the form."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["name", "age"],
}
TOOLS: Any = [
    {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}},
    {"type": "function", "function": {"name": "time"}},
]


def test_what_the_engine_is_asked_for() -> None:
    model = FakeModel()
    with serving(model) as running:
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA, "strict": True}}
        assert post(running, response_format=form).status_code == 200
        assert json.loads(model.asked[-1][1]["json_schema"]) == SCHEMA
        assert post(running, response_format={"type": "json_object"}).status_code == 200
        assert "root ::=" in model.asked[-1][1]["grammar"]
        assert post(running, grammar='root ::= "yes"').status_code == 200
        assert model.asked[-1][1]["grammar"] == 'root ::= "yes"'
        assert post(running, response_format={"type": "text"}).status_code == 200
        assert "grammar" not in model.asked[-1][1]
        assert post(running, tools=TOOLS, tool_choice="required").status_code == 200
        assert model.choices[-1] == ""
        named = {"type": "function", "function": {"name": "time"}}
        assert post(running, tools=TOOLS, tool_choice=named).status_code == 200
        assert model.choices[-1] == "time"
        assert post(running, tools=TOOLS, tool_choice="auto").status_code == 200
        assert model.choices[-1] is None


def test_the_other_endpoints() -> None:
    model = FakeModel()
    with serving(model) as running:
        form = {"type": "json_schema", "name": "person", "schema": SCHEMA}
        body: dict[str, Any] = {"input": "x", "text": {"format": form}, "tool_choice": "auto"}
        answer = running.http.post(f"{running.url}/v1/responses", json=body)
        assert answer.json()["text"]["format"] == form
        assert json.loads(model.asked[-1][1]["json_schema"]) == SCHEMA
        body = {
            "messages": ASK,
            "max_tokens": 9,
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        }
        assert running.http.post(f"{running.url}/v1/messages", json=body).status_code == 200
        assert json.loads(model.asked[-1][1]["json_schema"]) == SCHEMA
        tool = {"name": "weather", "input_schema": SCHEMA}
        body = {"messages": ASK, "max_tokens": 9, "tools": [tool], "tool_choice": {"type": "tool", "name": "weather"}}
        assert running.http.post(f"{running.url}/v1/messages", json=body).status_code == 200
        assert model.choices[-1] == "weather"


def post(running: Running, **fields: Any) -> httpx.Response:
    return running.http.post(f"{running.url}/v1/chat/completions", json={"messages": ASK, **fields})


def test_a_call_that_has_to_be_is_no_text_with_a_format() -> None:
    """Some clients (instructor, with /v1/responses) ask for both."""
    model = FakeModel()
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    with serving(model) as running:
        assert post(running, tools=TOOLS, tool_choice="required", response_format=form).status_code == 200
        assert model.choices[-1] == ""
        assert not {"json_schema", "grammar"} & model.asked[-1][1].keys()
        refused = post(running, tools=TOOLS, tool_choice="required", grammar='root ::= "a"')
        assert refused.status_code == 400
        assert "a grammar excludes" in refused.json()["error"]["message"]


def test_what_cannot_be_enforced_is_refused_before_any_work() -> None:
    model = FakeModel()
    with serving(model) as running:
        wrong = {"type": "object", "properties": {"tags": {"type": "array", "uniqueItems": True}}}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": wrong}}
        tool: Any = {"type": "function", "function": {"name": "f", "parameters": wrong}}
        strict = {"type": "function", "function": {**tool["function"], "strict": True}}
        for fields, says in (
            ({"response_format": form}, "'uniqueItems'"),
            ({"tools": [tool], "tool_choice": "required"}, "tool_choice: the tool 'f'"),
            ({"tools": [strict]}, "tools: the tool 'f'"),
            ({"grammar": 'root ::= root "a" | "b"'}, "begins with itself"),
            ({"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "none"}}}, "no tool 'none'"),
        ):
            response = post(running, **fields, stream=True)
            assert response.status_code == 400
            assert says in response.json()["error"]["message"]
        assert model.asked == []


@pytest.mark.model
def test_a_pydantic_model_on_the_demo() -> None:
    class Person(pydantic.BaseModel):  # type: ignore[name-defined]
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=1, le=99)
        city: str | None = pydantic.Field(max_length=20)

    with (
        Model("demo", quiet=True) as model,
        serving(model) as running,
        openai.OpenAI(base_url=f"{running.url}/v1", api_key="x") as client,
    ):
        found = client.chat.completions.parse(model="x", messages=ASK, response_format=Person, temperature=0).choices[0]
        assert isinstance(found.message.parsed, Person)
        assert found.finish_reason == "stop"
        text = found.message.content
        assert text == json.dumps(json.loads(text), separators=(",", ":"), ensure_ascii=False)
        chunks = client.chat.completions.create(
            model="x", messages=ASK, response_format={"type": "json_object"}, max_tokens=60, stream=True
        )
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks).startswith("{")
        cut = client.chat.completions.create(
            model="x", messages=ASK, max_tokens=3, extra_body={"grammar": "root ::= [a-z]{50}"}
        ).choices[0]
        assert cut.finish_reason == "length"
