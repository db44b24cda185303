"""The examples of docs/python.md, run one after the other as a reader would."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from embedding_models import write_reading_embedder

from medusa_cli import native
from medusa_cli.models import demo

GUIDE = Path(__file__).parents[2] / "docs" / "python.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.model
def test_the_examples_run(
    demo_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(demo.DEMO_VARIABLE, str(demo_model_path))
    embedder = write_reading_embedder(tmp_path / "embedder.gguf")
    names: dict[str, Any] = {}
    said = []
    try:
        for block in BLOCKS:
            code = block.replace('"model.gguf"', repr(str(demo_model_path)))
            code = code.replace('"nomic-embed-text-v1.5.Q8_0.gguf"', repr(str(embedder)))
            exec(compile(code, str(GUIDE), "exec"), names)
            said.append(capsys.readouterr().out)
    finally:
        native.forward_log(False)  # as accelerate() had it: tests that follow read stderr
    assert all(said)
    assert "tokens per step" in said[1]
    by_name = dict(zip((block.splitlines()[0] for block in BLOCKS), said, strict=True))
    assert by_name['with model.stream("Tell me a very long story.") as stream:'] == "cancelled\n"
    assert by_name["from medusa_cli import MedusaError"] == "top_p takes a number from 0 to 1, not 1.5\n"
    assert float(by_name['with Model("demo", no_spec=True, ctx_size=1024) as plain:']) == 1.0
    names["model"].close()
