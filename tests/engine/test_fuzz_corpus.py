"""What whole files the fuzzing of the engine begins with and found: each is answered from, or refused in one line."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from damaged_headers import Kind, run
from fuzz_seeds import PATTERNS
from random_bases import random_base

CORPUS = Path(__file__).parents[2] / "native/fuzz_engine/corpus.tar.gz"


@pytest.mark.parametrize("kind", ["base", "heads"])
def test_inputs_are_answered_from_or_refused_in_one_line(kind: Kind, tmp_path: Path) -> None:
    random_base(tmp_path / "base.gguf", "llama", layers=3)
    folder = tmp_path / "inputs" / kind
    folder.mkdir(parents=True)
    with tarfile.open(CORPUS) as corpus:
        for member in corpus:
            content = corpus.extractfile(member) if member.name.startswith(f"{kind}/") else None
            if content is not None:
                data = content.read()
                for name, pattern in PATTERNS.items():
                    (folder / f"{Path(member.name).name} {name}").write_bytes(data + pattern)
    inputs = len(list(folder.iterdir()))
    assert inputs > 10
    assert run(kind, tmp_path, 1 + inputs) == []  # base.gguf is one of the files, too
