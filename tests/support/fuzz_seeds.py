"""Writes what the fuzzing of whole files begins with: the headers of small models, heads and drafters of all kinds.

    python tests/support/fuzz_seeds.py FOLDER

FOLDER then has the folders base, heads, drafters and requests. Beside them are base.gguf, the model of these heads;
shallow.gguf and heads.gguf, which answer the requests; and targets, the models of these drafters by architecture.
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

import fixtures
import gguf
from architectures import ARCHITECTURES
from dflash_models import DFLASH_MODELS, write_dflash
from eagle_models import EAGLE_MODELS, write_eagle, write_target
from medusa_cli.converters.heads import schema
from medusa_cli.converters.heads.draft_heads import write_heads
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model
from random_bases import KINDS, random_base
from random_heads import random_heads, random_streams, write
from random_models import random_tensors, write_model
from stream_numpy import Base

from medusa_cli import native

PATTERNS = {
    "zeros": b"",
    "noise": random.Random(1).randbytes(63) + b"\x01",
    "nan": b"\xff" * 64,
    "huge": b"\x7f\x7b" * 32,
}
"""Ends of inputs, which their weights repeat (native/fuzz_engine/engine.h). Huge: near the largest F16, 1e36 as F32."""
KINDS_OF_FILES = ("base", "heads", "drafters")
QUANTIZED = {"q8_0": 7, "q4_0": 2, "q5_1": 9}
"""libllama's numbers of file types."""


def models(folder: Path) -> None:
    for architecture in KINDS:
        random_base(folder / f"{architecture}.gguf", architecture, layers=2)
    plain = fixtures.tiny_base(folder / "plain.gguf", chat_template="{{ messages }}")
    for name, number in QUANTIZED.items():
        native.quantize_model(str(plain), str(folder / f"{name}.gguf"), file_type=number)
    fixtures.tiny_base(folder / "experts.gguf", experts=4)
    fixtures.tiny_base(folder / "bytes.gguf", pre="llama-bpe", tied=True)
    fixtures.tiny_recurrent(folder / "recurrent.gguf")
    for name, one in ARCHITECTURES.items():
        write_model(folder / f"of {name}.gguf", one, random_tensors(folder, one, 1))


def heads(folder: Path, base: Path) -> None:
    for kind in ("medusa", "hydra", "hydra++", "recurrent"):
        for lm_head in ("base", "own", "draft_vocab"):
            write(folder / f"{kind} {lm_head}.gguf", random_heads(kind, lm_head, heads=2, blocks=1), "q8_0")
    for name, rank in (("streams", 8), ("shared", 0)):
        write_heads(folder / f"{name}.gguf", random_streams(Base(base), layers=2, rank=rank))
    accuracy, tree = [0.5, 0.2, 0.1, 0.4, 0.1, 0.1], [[0], [1], [0, 0]]
    fixtures.write_heads(folder / "tree.gguf", heads=2, blocks=1, lm_head="base", accuracy=accuracy, tree=tree)


def targets(folder: Path) -> None:
    write_target(folder / "llama.gguf", "plain")
    write_mtp_model(folder / "gemma4.gguf", "gemma4")


def drafters(folder: Path) -> None:
    for name, eagle in EAGLE_MODELS.items():
        if eagle.target == "llama":
            write_eagle(folder / f"eagle {name}.gguf", name)
    for name, dflash in DFLASH_MODELS.items():
        if dflash.target == "plain":
            write_dflash(folder / f"dflash {name}.gguf", name)
    write_assistant(folder / "assistant.gguf")
    for name, mtp in MTP_MODELS.items():
        if mtp.layers:
            whole = write_mtp_model(folder / f"{name} as F32.gguf", name)
            native.quantize_model(str(whole), str(folder / f"mtp {name}.gguf"), file_type=QUANTIZED["q8_0"])
            whole.unlink()


def requests(folder: Path) -> None:
    source = random.Random(2)
    for number in range(32):
        (folder / str(number)).write_bytes(source.randbytes(96))


def header(path: Path) -> bytes:
    """With the draft vocabulary after it, if there is one: the zeros between are weights."""
    reader, content = gguf.GGUFReader(path), path.read_bytes()
    start = reader.data_offset
    for tensor in reader.tensors:
        if tensor.name == schema.D2T:
            end = tensor.data_offset + tensor.n_bytes
            return content[:start] + bytes(tensor.data_offset - start) + content[tensor.data_offset : end]
    return content[:start]


def main() -> None:
    folder = Path(sys.argv[1])
    for name in (*KINDS_OF_FILES, "requests", "targets"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    base = random_base(folder / "base.gguf", "llama", layers=3)
    random_base(folder / "shallow.gguf", "llama", layers=1)
    write(folder / "heads.gguf", random_heads("hydra", "base", heads=2, blocks=1), "q8_0")
    models(folder / "base")
    heads(folder / "heads", base)
    drafters(folder / "drafters")
    requests(folder / "requests")
    targets(folder / "targets")
    for path in [path for name in KINDS_OF_FILES for path in folder.glob(f"{name}/*")]:
        if path.suffix == ".gguf":
            content = header(path)
            for name, pattern in PATTERNS.items():
                (path.parent / f"{path.stem} {name}").write_bytes(content + pattern)
        path.unlink()


if __name__ == "__main__":
    main()
