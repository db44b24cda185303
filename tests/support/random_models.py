"""Small models of any architecture that libllama knows, with seeded random weights, as GGUF files.

What tensors an architecture has is libllama's knowledge: it makes a model of metadata alone and asks for the values of
each tensor. So a test needs to know no more than the keys.
"""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias
from zlib import crc32

import gguf
import llama_cpp
import numpy as np
from architectures import TOKENS, Architecture

F32, F16 = 0, 1
Tensors: TypeAlias = "dict[str, np.ndarray[Any, np.dtype[Any]]]"
"""Values by name, in NumPy's order of sizes: the last one is ggml's first."""

_SetTensorData = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)


class _GgufInit(ctypes.Structure):
    _fields_ = [("no_alloc", ctypes.c_bool), ("context", ctypes.c_void_p)]


@cache
def _ggml() -> ctypes.CDLL:
    folder = Path(llama_cpp.__file__).parent / "lib"
    name = next(name for name in ("libggml-base.so", "libggml-base.dylib", "ggml-base.dll") if (folder / name).exists())
    lib = ctypes.CDLL(str(folder / name))
    lib.ggml_get_name.restype = ctypes.c_char_p
    lib.ggml_get_name.argtypes = [ctypes.c_void_p]
    lib.gguf_init_from_file.argtypes = [ctypes.c_char_p, _GgufInit]
    lib.gguf_init_from_file.restype = ctypes.c_void_p
    lib.gguf_free.argtypes = [ctypes.c_void_p]
    return lib


def random_values(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Small normal numbers; norms near one, and decays of states negative, as trained models have them.

    Norms of queries and keys are smaller: sharp attention over random text would blow rounding errors up.
    """
    values = np.random.default_rng([seed, crc32(name.encode())]).standard_normal(shape).astype(np.float32)
    if "ssm_a" in name:
        return -np.abs(values)
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return np.float32(0.3) + np.float32(0.03) * values
    if name.endswith("norm.weight"):
        return 1 + np.float32(0.1) * values
    return values * np.float32(shape[-1] ** -0.5 if len(shape) > 1 else 0.1)


class _TensorHead(ctypes.Structure):
    """How a ggml_tensor begins."""

    _fields_ = [("type", ctypes.c_int32), ("buffer", ctypes.c_void_p), ("sizes", ctypes.c_int64 * 4)]


def _writer(path: Path, architecture: Architecture) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, architecture.name)
    for key, value in architecture.keys.items():
        full = key if key.startswith(("xielu.", "tokenizer.")) else f"{architecture.name}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        else:
            writer.add_array(full, value)
    writer.add_tokenizer_model("test")
    writer.add_token_list([f"tok_{i}" for i in range(TOKENS)])
    writer.add_token_scores([0.0] * TOKENS)
    return writer


def _tensors(metadata: Path) -> dict[str, tuple[int, tuple[int, ...]]]:
    """Name -> type and shape of all tensors of a model with these keys. RuntimeError when there is none."""
    ggml, found = _ggml(), {}

    def note(tensor: int, _: int) -> None:
        head = ctypes.cast(tensor, ctypes.POINTER(_TensorHead))[0]
        shape = tuple(head.sizes)[::-1]
        while len(shape) > 1 and shape[0] == 1:
            shape = shape[1:]
        found[ggml.ggml_get_name(tensor).decode()] = (head.type, shape)

    context = ggml.gguf_init_from_file(bytes(metadata), _GgufInit(True, None))
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = 0
    params.load_mtp = True
    model = llama_cpp.llama_model_init_from_user(context, _SetTensorData(note), None, params)
    ggml.gguf_free(context)
    if not model:
        raise RuntimeError(f"{metadata}: libllama makes no model of these keys")
    llama_cpp.llama_model_free(model)
    return found


def random_tensors(folder: Path, architecture: Architecture, seed: int = 0) -> Tensors:
    """All tensors of a model of the architecture, in F32 but for what libllama wants in F16.

    folder: for a file that is gone afterwards. The next-token layers that the keys name are among them.
    """
    metadata = folder / f"{architecture.name}.metadata"
    writer = _writer(metadata, architecture)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    tensors: Tensors = {}
    for name, (kind, shape) in _tensors(metadata).items():
        assert kind in (F32, F16), name
        values = random_values(name, shape, seed)
        tensors[name] = values.astype(np.float16) if kind == F16 else values
    metadata.unlink()
    return tensors


def write_model(path: Path, architecture: Architecture, tensors: Tensors) -> None:
    writer = _writer(path, architecture)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_random_model(path: Path, architecture: Architecture, seed: int = 0) -> None:
    """A model of the architecture, all of it in F32 but for what libllama wants in F16."""
    write_model(path, architecture, random_tensors(path.parent, architecture, seed))
