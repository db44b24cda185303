"""Adapters as a GGUF of their own, which llama.cpp applies to the base when it loads (`--lora`)."""

from __future__ import annotations

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

from .adapters import Adapters


def write(adapters: Adapters, architecture: str, name: str, path: Path) -> None:
    """Whole or not at all, in F32. name: of the base."""
    matrices: list[tuple[str, NDArray[np.float32]]] = []
    for adapted in adapters.names():
        a, b = adapters.matrices(adapted)
        for part, values in (("lora_a", a), ("lora_b", b)):
            matrices.append((f"{adapted}.weight.{part}", values.detach().cpu().numpy().astype("<f4")))
    kind = int(GGMLQuantizationType.F32)
    tensors = [TensorInfo(tensor, matrix.shape[::-1], kind, 0, matrix.nbytes) for tensor, matrix in matrices]
    entries = [
        encode_kv("general.type", STRING, "adapter"),
        encode_kv("general.architecture", STRING, architecture),
        encode_kv("general.name", STRING, f"Medusa-2 of {name}"),
        encode_kv("adapter.type", STRING, "lora"),
        encode_kv("adapter.lora.alpha", FLOAT32, adapters.alpha),
    ]
    with atomic_file(path) as out:
        out.write(build(entries, placed(tensors, 0, DEFAULT_ALIGNMENT), DEFAULT_ALIGNMENT))
        for _, matrix in matrices:
            out.write(matrix.tobytes())
            out.write(bytes(padded(matrix.nbytes, DEFAULT_ALIGNMENT) - matrix.nbytes))
