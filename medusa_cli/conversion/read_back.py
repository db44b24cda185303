"""Does a written file hold what its source does? Compares tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize

from medusa_cli.conversion.self_check import bound_of
from medusa_cli.converters.base.model_file import PlannedTensor
from medusa_cli.support.errors import MedusaError

SLICE_VALUES = 4 << 20


def check(planned: Sequence[PlannedTensor], path: Path, on_tensor: Callable[[int, int], None]) -> tuple[float, float]:
    """Largest difference of a tensor's values to its source's, relative to them, and the bound for its type.

    on_tensor(number, count). One tensor is in memory at a time. MedusaError for a difference beyond the bound, and for
    missing tensors.
    """
    written = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
    worst = (0.0, 1.0)
    for number, tensor in enumerate(planned, 1):
        found = written.get(tensor.name)
        if found is None or tuple(map(int, found.shape[::-1])) != tensor.shape:
            raise MedusaError(f"self-check failed: {tensor.name} is not as planned; please report this")
        source = tensor.load().reshape(-1, tensor.shape[-1])
        data = found.data.reshape(len(source), -1)
        rows = max(1, SLICE_VALUES // source.shape[1])
        error = size = 0.0
        for start in range(0, len(source), rows):
            expected = source[start : start + rows].astype(np.float64)
            part = data[start : start + rows]
            actual = part if part.dtype.kind == "i" else dequantize(part, found.tensor_type)
            error += float(np.sum((actual - expected) ** 2))
            size += float(np.sum(expected**2))
        del source
        deviation, bound = float(np.sqrt(error / (size + 1e-18))), bound_of([found.tensor_type.name.lower()])
        if not deviation <= bound:
            raise MedusaError(
                f"self-check failed: {tensor.name} differs from its source by {deviation:.3f} (allowed: {bound:.3f}); "
                "please report this with the checkpoint's name"
            )
        worst = max(worst, (deviation, bound), key=lambda pair: pair[0] / pair[1])
        on_tensor(number, len(planned))
    return worst
