"""One spelling of keys and tensor names: schema.py's, which the engine reads and nobody else in Python repeats."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from fixtures import tiny_base
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.write import HeadsPlan, tuned_entries, write_heads_file
from random_heads import random_heads

from medusa_cli import native

ROOT = Path(__file__).parents[2]
PYTHON_ONLY = {
    schema.DRAFT_VOCAB_SIZE_KEY,
    schema.SELF_CHECK_KEY,
    schema.BASE_NAME_KEY,
    schema.BASE_FINGERPRINT_KEY,
    schema.BASE_SIZE_KEY,
    schema.SOURCE_KEYS,
    schema.BASE_SOURCE_KEYS,
}
"""What `medusa inspect`, `split` and the choice of a base read; the engine does not."""


def names_in_native() -> set[str]:
    """Every whole key or tensor name that is a literal in the engine's sources."""
    sources = [path.read_text() for path in (ROOT / "native").rglob("*") if path.suffix in (".cpp", ".h")]
    return {name for text in sources for name in re.findall(r'"(medusa\.[a-z0-9_.]*[a-z0-9_])"', text)}


def test_the_engine_spells_the_same_names() -> None:
    ours = {value for value in vars(schema).values() if isinstance(value, str) and value.startswith("medusa.")}
    assert names_in_native() == ours - PYTHON_ONLY
    listed = re.search(r"prefix_tensors\[\] = \{([^}]*)\}", (ROOT / "native/heads/metadata.h").read_text())
    assert listed is not None
    assert set(re.findall(r'"(\w+)"', listed[1])) == {*schema.PREFIX_MATRICES, *schema.PREFIX_NORMS}
    listed = re.search(r"stream_matrices\[\] = \{([^}]*)\}", (ROOT / "native/heads/metadata.h").read_text())
    assert listed is not None
    assert tuple(re.findall(r'"(\w+)"', listed[1])) == schema.STREAM_MATRICES


@pytest.mark.parametrize("lm_head", schema.LM_HEADS)
@pytest.mark.parametrize("kind", schema.KINDS)
def test_the_engine_loads_files_of_these_names(tmp_path: Path, kind: schema.Kind, lm_head: schema.LmHead) -> None:
    """It refuses tensors that it does not know and files that lack one."""
    accuracy, tree = [[0.5, 0.25]] * 3, [[0], [1], [0, 0]]
    source = random_heads(kind, lm_head)
    path = tmp_path / "heads.gguf"
    write_heads_file(path, source, HeadsPlan("tiny", "print", measured=tuned_entries(accuracy, tree)))
    heads = native.Heads(native.Model(str(tiny_base(tmp_path / "base.gguf"))), str(path))
    assert (heads.kind, heads.lm_head) == (kind, lm_head)
    assert (heads.head_count, heads.block_count, heads.output_rows) == (3, 2, source.rows)
    assert (heads.accuracy, heads.tree) == (accuracy, tree)


def literals(path: Path) -> Iterator[str]:
    """The strings of a module, whole ones and the pieces of f-strings; docstrings are none."""
    tree = ast.parse(path.read_text())
    texts = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in texts:
            yield node.value


def test_no_other_module_spells_them() -> None:
    modules = [path for room in ("medusa_cli", "converters", "benchmarks") for path in (ROOT / room).rglob("*.py")]
    assert len(modules) > 100
    for path in modules:
        if path.name != "schema.py":
            assert [text for text in literals(path) if re.match(r"medusa\.($|[a-z])", text)] == [], path
