"""Writes tests/data/eagle3_reference.json: what llama.cpp's converter makes of the checkpoints of eagle_checkpoints.py.

    python tests/support/make_eagle_fixtures.py PATH/convert_hf_to_gguf.py

PATH: an unpacked llama.cpp; llama-cpp-python's source distribution has one under vendor/. Its converter needs torch and
transformers, and finds the gguf package beside it. Byte-level vocabularies that were never published are unknown to it,
and it is told the name of their pre-tokenizer (see benchmarks/conversion.py, which must be on PYTHONPATH like medusa).
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from conversion import RUN_PEER
from eagle_checkpoints import LAYOUTS, write_checkpoint, write_target
from gguf_digests import described

REFERENCE = Path(__file__).parents[1] / "data" / "eagle3_reference.json"
TYPES = ("F32", "F16", "BF16")
PRE_TOKENIZERS = {"llama-bpe": "llama-bpe", "qwen2": "qwen2"}
COMPARED = ("eagle3.", "tokenizer.", "general.architecture", "general.file_type", "general.quantization_version")


def compared(path: Path) -> dict[str, Any]:
    """The keys and tensors of a file that must be equal."""
    found = described(path)
    return {**found, "metadata": {key: value for key, value in found["metadata"].items() if key.startswith(COMPARED)}}


def reference(script: str, name: str, file_type: str, scratch: Path) -> dict[str, Any]:
    layout = LAYOUTS[name]
    target = write_target(scratch / "target", layout.target)
    checkpoint = write_checkpoint(scratch / name, layout)
    pre = PRE_TOKENIZERS.get(layout.target, "")
    command = [sys.executable, "-c", RUN_PEER, script, pre, str(checkpoint), "--target-model-dir", str(target)]
    out = scratch / "out.gguf"
    subprocess.run([*command, "--outtype", file_type.lower(), "--outfile", str(out)], check=True)
    return compared(out)


def main(script: str) -> None:
    found = {}
    for name in LAYOUTS:
        for file_type in TYPES:
            with tempfile.TemporaryDirectory() as scratch:
                found[f"{name} {file_type}"] = reference(script, name, file_type, Path(scratch))
    lines = [f" {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in found.items()]
    REFERENCE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1])
