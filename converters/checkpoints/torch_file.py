"""torch.save files (.pt, .bin), read as data: nothing in them is executed.

torch is imported only here, and only when such a file is opened. Its restricted unpickler (weights_only) knows tensors
and plain containers; anything else is refused. The file is mapped, and the mapping is renewed every RENEW_BYTES, so
that pages already read do not pile up in the resident size.
"""

from __future__ import annotations

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import MedusaError
from ..files import explain_os_error
from .safetensors_file import FLOATS8, StoredTensor, check_shape

RENEW_BYTES = 64 << 20
MAX_PICKLE_BYTES = 64 << 20
OLDEST_SAFE_TORCH = (2, 10)
"""In older versions, a hostile file gets past weights_only (CVE-2025-32434, CVE-2026-24747)."""

DTYPES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""torch's dtype names -> those of safetensors."""


class TorchFile:
    """One file written by torch.save: a flat dictionary of dense tensors.

    MedusaError for anything else, and if torch is missing or too old to read foreign files safely.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._torch = _import_torch(path)
        _check_archive(path)
        self._state = self._open()
        self._read = 0
        self.tensors = {name: self._stored(name, value) for name, value in self._state.items()}

    def load(self, name: str) -> NDArray[Any]:
        """The tensor's values in fresh memory; BF16 and F8 become float32, the rest stays as stored."""
        if not self._state:
            self._state, self._read = self._open(), 0
        tensor = self._state[name].detach()
        self._read += tensor.numel() * tensor.element_size()
        if self.tensors[name].dtype in ("BF16", *FLOATS8):
            values = np.ascontiguousarray(tensor.to(self._torch.float32).numpy())
        else:
            values = np.array(tensor.numpy(), order="C")
        if self._read > RENEW_BYTES:
            self._state = {}
        return values

    def _open(self) -> dict[str, Any]:
        try:
            state = self._torch.load(self.path, map_location="cpu", weights_only=True, mmap=True)
        except OSError as error:
            raise explain_os_error(error, self.path) from error
        except pickle.UnpicklingError:
            raise MedusaError(
                f"{self.path}: holds Python objects, not only tensors; refused, since loading it could run foreign "
                "code: ask its author for safetensors"
            ) from None
        except Exception as error:  # torch raises all kinds of errors for damaged archives
            raise MedusaError(
                f"{self.path}: not a readable torch file ({type(error).__name__}), download it again"
            ) from error
        if not isinstance(state, dict):
            raise MedusaError(f"{self.path}: holds a {type(state).__name__} instead of named tensors")
        return state

    def _stored(self, name: Any, value: Any) -> StoredTensor:
        label = f"{self.path}: entry {name!r}"
        if not isinstance(name, str) or not isinstance(value, self._torch.Tensor):
            raise MedusaError(f"{label} is not a named tensor, save a plain state dict")
        if value.layout != self._torch.strided or value.is_quantized or value.device.type != "cpu":
            raise MedusaError(f"{label} is not a dense tensor, save it as F16, BF16 or F32")
        dtype = DTYPES.get(str(value.dtype).removeprefix("torch."))
        if dtype is None:
            raise MedusaError(f"{label} has dtype {value.dtype}, save it as F16, BF16 or F32")
        if value.numel() * value.element_size() > value.untyped_storage().nbytes():
            raise MedusaError(f"{label} claims more values than the file holds, the file is damaged")
        check_shape(label, value.shape)
        return StoredTensor(name, tuple(value.shape), dtype)


def _import_torch(path: Path) -> Any:
    try:
        import torch
    except ImportError:
        raise MedusaError(
            f"{path}: reading this kind of file needs torch: pip install 'medusa-cli[train]', or use safetensors"
        ) from None
    version = tuple(int(part) for part in torch.__version__.split(".")[:2])
    if version < OLDEST_SAFE_TORCH:
        raise MedusaError(
            f"{path}: torch {torch.__version__} cannot read foreign files safely, "
            f"install torch {'.'.join(map(str, OLDEST_SAFE_TORCH))} or newer"
        )
    return torch


def _check_archive(path: Path) -> None:
    """torch maps its archive and trusts its members: they must be stored plainly and have a sane size."""
    try:
        if not zipfile.is_zipfile(path):
            raise MedusaError(
                f"{path}: not a torch file, or saved before torch 1.6, or truncated: download it again or save it anew"
            )
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except OSError as error:
        raise explain_os_error(error, path) from error
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise MedusaError(f"{path}: damaged torch file, download it again") from None
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise MedusaError(f"{path}: a compressed archive, which torch never writes; refused")
        if member.filename.endswith("data.pkl") and member.file_size > MAX_PICKLE_BYTES:
            raise MedusaError(f"{path}: its index has {member.file_size} bytes, more than any model needs")
