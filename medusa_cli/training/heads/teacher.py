"""The base's own next-token distribution at every row, from the stored hidden states: what distilled heads learn.

Only its likeliest tokens (Recipe.teacher_top) of the draft vocabulary are kept, with their probabilities scaled to
sum to 1. They are computed once and kept beside the text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.support.atomic import atomic_file

from ..memory import recall, remember
from .recipe import TEACHER_TOP
from .rows import FileRows

BLOCK = 512
"""Rows whose logits are held at once."""


def teacher_rows(
    folder: Path,
    states: FileRows,
    rows: int,
    d2t: NDArray[np.int32],
    output: Tensor,
    on_rows: Callable[[int], None] = lambda done: None,
    most: int = TEACHER_TOP,
) -> tuple[FileRows, FileRows]:
    """(ids [rows, T] int32 into the draft vocabulary, p [rows, T] float16) of the first `rows` states.

    output [D, h] on the device, in the dtype to multiply in; most: T, unless D is less.
    Kept in `folder` as teacher.{ids,p}.npy, each written
    whole or not at all; computed anew when they are of other text or another draft vocabulary. on_rows may raise.
    """
    names = [folder / "teacher.ids.npy", folder / "teacher.p.npy"]
    top = min(most, len(output))
    key = {
        "rows": rows,
        "top": top,
        "vocabulary": hashlib.sha256(d2t.tobytes()).hexdigest(),
        "dtype": str(output.dtype),
    }
    marker = folder / "teacher.json"
    if not (recall(marker) == key and all(name.exists() for name in names)):
        marker.unlink(missing_ok=True)
        _compute(names, states, rows, top, output, on_rows)
        remember(marker, key)
    ids, p = (FileRows([np.load(name, mmap_mode="r")], states.device) for name in names)
    return ids, p


@torch.no_grad()
def _compute(
    names: list[Path], states: FileRows, rows: int, top: int, output: Tensor, on_rows: Callable[[int], None]
) -> None:
    # Written, not mapped: a full disk is an error then, and not a bus error that ends the process.
    with atomic_file(names[0]) as ids, atomic_file(names[1]) as p:
        for file, kind in ((ids, np.int32), (p, np.float16)):
            header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False}
            np.lib.format.write_array_header_1_0(file, {**header, "shape": (rows, top)})
        for at in range(0, rows, BLOCK):
            picked = torch.arange(at, min(rows, at + BLOCK))
            logits = states.gather(picked).to(output.dtype) @ output.T
            best = logits.topk(top, dim=1)
            ids.write(best.indices.int().cpu().numpy().tobytes())
            p.write(torch.softmax(best.values.float(), dim=1).half().cpu().numpy().tobytes())
            on_rows(at + len(picked))
