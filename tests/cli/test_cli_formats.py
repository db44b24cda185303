"""`medusa generate` with a fake model: answers that follow a schema or a grammar."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_fakes import base_gguf, install
from command_line import invoke

from medusa_cli import native


def test_schemas_and_grammars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, session = str(base_gguf(tmp_path / "tiny.gguf")), install(monkeypatch)
    grammar, schema = tmp_path / "g.gbnf", tmp_path / "s.json"
    grammar.write_text('root ::= "yes" | "no"')
    schema.write_text('{"type": "integer"}')
    session.answers = ["yes"] * 3
    for options in (["--grammar", str(grammar)], ["--json-schema", str(schema)], ["--json-schema", '{"type": "null"}']):
        code, _, err = invoke("generate", model, "-p", "hi", *options)
        assert code == 0, err
        assert isinstance(session.calls[-1].grammar, native.Grammar)
    for wrong, code, says in (
        (["--grammar", str(tmp_path / "none")], 1, "no such file"),
        (["--grammar", str(schema)], 1, "the grammar, line 1"),
        (["--json-schema", '{"not": {}}'], 1, "'not' cannot be enforced"),
        (["--json-schema", "{}", "--grammar", str(grammar)], 2, "a schema is a grammar already"),
        (["--json-schema", "{}", "--ignore-eos"], 2, "says where an answer ends"),
    ):
        found, _, err = invoke("generate", model, "-p", "hi", *wrong)
        assert (found, says in " ".join(err.split())) == (code, True), err
