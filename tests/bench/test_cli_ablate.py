"""The command `medusa bench ablate`: bad input, and once with the demo model."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from cli_fakes import base_gguf, install
from command_line import invoke


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--minutes", "0"), 2, "--minutes"),
        (("--data", "no-such-file"), 1, "no such file: no-such-file"),
        (("--heads", "no-heads.gguf"), 1, "no such file: no-heads.gguf"),
        (("--json", "no-such-folder/x.json"), 1, "no-such-folder/x.json: No such file or directory"),
        ((), 1, "has no draft heads, so there is nothing to ablate: give --heads FILE"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: tuple[str, ...], code: int, words: str
) -> None:
    install(monkeypatch)
    found, out, error = invoke("bench", "ablate", str(base_gguf(tmp_path / "tiny.gguf")), *more)
    assert (found, out) == (code, "")
    assert words in error
    assert code == 2 or error.count("\n") == 1


def test_figures_go_to_a_folder(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    file = tmp_path / "file"
    file.write_text("")
    code, _, error = invoke("bench", "ablate", "x.gguf", "--figures", str(file))
    assert (code, error.count("\n")) == (1, 1)
    assert str(file) in error


@pytest.mark.slow
@pytest.mark.model
def test_the_demo_is_ablated(demo_model_path: Path, tmp_path: Path) -> None:
    path, began = tmp_path / "a.json", time.monotonic()
    code, out, error = invoke("bench", "ablate", "demo", "--minutes", "0.3", "-t", "1", "--json", str(path))
    assert code == 0, error
    assert time.monotonic() - began < 40
    document = json.loads(path.read_text())
    assert document["complete"]
    keys = {
        "name", "nodes", "rule", "heads", "tokens_per_step", "tokens_per_second", "speedup_vs_plain", "overhead"
    }  # fmt: skip
    assert all(keys <= set(row) for row in document["rows"])
    measured = {row["name"]: row for row in document["rows"] if row["tokens_per_step"] is not None}
    assert {"chain", "cartesian:3,2,1", "random 16", "sparse 16", "tuned", "grown"} <= set(measured)
    assert measured["sparse 16"]["tokens_per_step"] > 1
    assert [row["nodes"] for row in document["cost_model"]["rows"]] == [2, 4, 8, 16, 32, 64]
    for row in document["rows"]:
        if row["rule"] in ("greedy", "exact"):
            assert row["same_text"] in (None, row["prompts"])
    assert "How large a tree? (Medusa fig. 4)" in out
