"""torch, imported late and set up the same way everywhere."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from medusa_cli.support.errors import does_not_load

if TYPE_CHECKING:
    import torch


def require_torch() -> None:
    """MedusaError that says how to install torch if it is missing. Otherwise imports it (seconds)."""
    # Each step takes and returns hundreds of megabytes: with 4 KiB pages, clearing them is a third of its time.
    os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        import torch  # noqa: F401
    except (ImportError, OSError) as error:
        install = 'pip install "medusa-cli[train]" -c constraints.txt'
        raise does_not_load("training needs torch", error, install) from error


@contextlib.contextmanager
def deterministic(threads: int) -> Iterator[None]:
    """Same inputs, same bits (on one device and thread count). threads 0: as torch chooses."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    import torch

    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads()
    torch.use_deterministic_algorithms(True)
    if threads > 0:
        torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0])
        torch.set_num_threads(before[1])


def pick_device() -> torch.device:
    """The GPU when torch sees one, else the CPU."""
    import torch

    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def fastest(matrix: torch.Tensor) -> torch.Tensor:
    """In the dtype that its device multiplies fastest."""
    return matrix.to(matmul_dtype(matrix.device))


def matmul_dtype(device: torch.device) -> torch.dtype:
    """bfloat16 if the hardware multiplies it fast, else float32.

    That is on GPUs and CPUs with AMX (ten times float32) or AVX-512's products of bfloat16 (four times).
    """
    import torch

    fast = (getattr(torch.cpu, f"_is_{name}_supported", lambda: False) for name in ("amx_tile", "avx512_bf16"))
    return torch.bfloat16 if device.type == "cuda" or any(supported() for supported in fast) else torch.float32
