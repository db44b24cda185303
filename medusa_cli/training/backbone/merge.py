"""Adapters as files: merged into a base model's (adapted tensors are new, everything else is the same byte for byte),
or in their own GGUF, which llama.cpp applies to the base when it loads (`--lora`)."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np
from gguf.constants import GGMLQuantizationType
from numpy.typing import NDArray

from medusa_cli.converters.gguf.header import (
    DEFAULT_ALIGNMENT,
    FLOAT32,
    STRING,
    TensorInfo,
    build,
    encode_kv,
    padded,
    placed,
)
from medusa_cli.support.atomic import atomic_file

from .layers import Adapters
from .rewriting import Moved, rewrite
from .shape import BaseTensors

NAME_KEY = "general.name"
NAME_ENDING = " (Medusa-2)"


def merge(
    tensors: BaseTensors,
    adapters: Adapters,
    name: str,
    path: Path,
    on_bytes: Callable[[int, int], None],
    ending: str = NAME_ENDING,
) -> Moved:
    """Writes the base in `tensors` with `adapters` merged to `path`, whole or not at all.

    It is called `name` with `ending`, so that nobody takes it for the base.
    """
    adapted = {
        f"{name}.weight": partial(_adapted, tensors, adapters, name)  # one matrix at a time is in memory
        for name in adapters.names()
    }
    renamed = encode_kv(NAME_KEY, STRING, name + ending)
    kv = [renamed if entry.key == NAME_KEY else entry for entry in tensors.header.kv]
    if all(entry.key != NAME_KEY for entry in kv):
        kv.append(renamed)
    return rewrite(tensors, adapted, kv, path, on_bytes)


def _adapted(tensors: BaseTensors, adapters: Adapters, name: str) -> NDArray[np.float32]:
    return tensors.load(f"{name}.weight") + adapters.change(name).cpu().numpy()


@contextlib.contextmanager
def adapter_file(adapters: Adapters, name: str, path: Path) -> Iterator[None]:
    """Writes `adapters` as a LoRA, in F32. It appears, whole, if the block ends without an error. name: the base's.

    MedusaError before the block begins, if it cannot be written.
    """
    matrices: list[tuple[str, NDArray[np.float32]]] = []
    for adapted in adapters.names():
        a, b = adapters.matrices(adapted)
        for part, values in (("lora_a", a), ("lora_b", b)):
            matrices.append((f"{adapted}.weight.{part}", values.detach().cpu().numpy().astype("<f4")))
    kind = int(GGMLQuantizationType.F32)
    tensors = [TensorInfo(tensor, matrix.shape[::-1], kind, 0, matrix.nbytes) for tensor, matrix in matrices]
    entries = [
        encode_kv("general.type", STRING, "adapter"),
        encode_kv("general.architecture", STRING, adapters.architecture),
        encode_kv("general.name", STRING, f"Medusa-2 of {name}"),
        encode_kv("adapter.type", STRING, "lora"),
        encode_kv("adapter.lora.alpha", FLOAT32, adapters.alpha),
    ]
    with atomic_file(path) as out:
        out.write(build(entries, placed(tensors, 0, DEFAULT_ALIGNMENT), DEFAULT_ALIGNMENT))
        for _, matrix in matrices:
            out.write(matrix.tobytes())
            out.write(bytes(padded(matrix.nbytes, DEFAULT_ALIGNMENT) - matrix.nbytes))
        out.flush()
        yield
