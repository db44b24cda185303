"""The converters are a package of their own: they work without medusa, and say what each of their names does."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEADS = ROOT / "tests" / "data" / "heads" / "medusa-v1-once"
BASE = ROOT / "tests" / "data" / "hf" / "qwen2"

ALONE = """
import importlib, numpy, pathlib, sys

class Elsewhere:
    def find_spec(self, name, path=None, target=None):
        assert name.partition(".")[0] not in ("medusa_cli", "rich", "typer", "llama_cpp", "huggingface_hub"), name

root, heads, base, out = map(pathlib.Path, sys.argv[1:])
sys.meta_path.insert(0, Elsewhere())
sys.path.insert(0, str(root))
for path in sorted((root / "converters").rglob("*.py")):
    importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"))
from converters.base import write_base
from converters.checkpoints.checkpoint import open_checkpoint
from converters.errors import MedusaError
from converters.heads.formats import read_heads
from converters.heads.write import HeadsPlan, rows_of_gguf, write_heads_file
write_base(open_checkpoint(base), out / "base.gguf", "F16")
source = read_heads(open_checkpoint(heads))
write_heads_file(out / "heads.gguf", source, HeadsPlan("base", "print", "q8_0", "f16"))
try:
    rows_of_gguf("q6_k", numpy.zeros((1, 256), numpy.float32))
except MedusaError as error:
    print(error)
"""


def test_conversion_needs_nothing_of_medusa(tmp_path: Path) -> None:
    command = [sys.executable, "-c", ALONE, *map(str, (ROOT, HEADS, BASE, tmp_path))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("type q6_k needs an engine that quantizes")
    assert {path.name for path in tmp_path.iterdir()} >= {"base.gguf", "heads.gguf"}


def test_messages_name_no_options() -> None:
    named = [
        (path.name, node.value)
        for path in sorted((ROOT / "converters").rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and re.search(r"--[a-z]|`medusa ", node.value)
    ]
    assert named == []


def undocumented(path: Path) -> list[str]:
    """Public modules, classes, functions and methods of a file that have no docstring."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    found = [] if ast.get_docstring(tree) else [path.name]
    scopes: list[ast.Module | ast.ClassDef] = [tree]
    for scope in scopes:
        for node in scope.body:
            if isinstance(node, (ast.ClassDef, ast.FunctionDef)) and not node.name.startswith("_"):
                found += [] if ast.get_docstring(node) else [f"{path.name}: {node.name}"]
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                scopes.append(node)
    return found


def test_public_names_have_docstrings() -> None:
    found = [name for path in sorted((ROOT / "converters").rglob("*.py")) for name in undocumented(path)]
    assert found == []
