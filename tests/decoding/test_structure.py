"""Schemas and grammars as options: from files and texts to the engine's grammar, and what contradicts them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from medusa_cli import native
from medusa_cli.decoding import settings, structure
from medusa_cli.decoding.options import AcceptKind, DraftOptions, SamplingOptions
from medusa_cli.support.errors import MedusaError, WrongOption

SCHEMA = '{"type": "object", "properties": {"a": {"type": "integer"}}}'


def test_a_schema_or_a_file() -> None:
    file = Path("schema.json")
    file.write_text(SCHEMA, encoding="utf-8")
    assert structure.read("json_schema", str(file)) == SCHEMA == structure.read("json_schema", SCHEMA)
    assert structure.read("json_schema", " true") == " true"
    for name, text in (("json_schema", "none.json"), ("grammar", 'root ::= "a"'), ("grammar", "{}")):
        with pytest.raises(MedusaError, match="no such file"):
            structure.read(name, text)


def test_pydantic_models_and_objects() -> None:
    class Model:
        @staticmethod
        def model_json_schema() -> dict[str, Any]:
            return {"type": "integer"}

    assert structure.schema_text(Model) == '{"type": "integer"}'
    assert structure.schema_text({"type": "integer"}) == '{"type": "integer"}'
    for wrong in (3, {"const": object()}, [1]):
        with pytest.raises(MedusaError, match="json_schema"):
            structure.schema_text(wrong)


def test_settings_have_the_engine_s_grammar() -> None:
    asked = SamplingOptions(json_schema=SCHEMA)
    found = settings.from_options(asked, DraftOptions(), 0.0)
    assert isinstance(found.structure, native.Grammar)
    assert found.structure is dataclasses.replace(found, max_tokens=3).structure  # compiled once
    assert settings.from_options(SamplingOptions(), DraftOptions(), 0.0).structure is None


@pytest.mark.parametrize(
    ("sampling", "draft"),
    [
        ({"grammar": 'root ::= "a"'}, {}),
        ({"ignore_eos": True}, {}),
        ({"temperature": 1.0}, {"accept": AcceptKind.nucleus}),
        ({"temperature": 1.0}, {"accept": AcceptKind.typical, "as_published": True}),
    ],
)
def test_contradictions(sampling: dict[str, Any], draft: dict[str, Any]) -> None:
    with pytest.raises(WrongOption):
        settings.from_options(SamplingOptions(json_schema=SCHEMA, **sampling), DraftOptions(**draft), 0.0)


def test_set_in_a_chat() -> None:
    Path("g.gbnf").write_text('root ::= "a"', encoding="utf-8")
    found = settings.from_options(SamplingOptions(), DraftOptions(), 0.7)
    found = settings.changed(found, "json-schema", SCHEMA)
    assert (settings.show(found, "json-schema"), settings.show(found, "grammar")) == ("on", "off")
    found = settings.changed(found, "grammar", "g.gbnf")
    assert (settings.show(found, "json-schema"), settings.show(found, "grammar")) == ("off", "on")
    found = settings.changed(found, "grammar", "off")
    assert found.structure is None
    for name, text in (("json-schema", '{"not": {}}'), ("grammar", "none.gbnf"), ("json-schema", "{")):
        with pytest.raises(MedusaError):
            settings.changed(found, name, text)
