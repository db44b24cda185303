"""What a batch is made of, by row number of the corpus: hidden states, embeddings of the drafted tokens, targets,
noise, and the base's own distribution there (the teacher)."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.support.atomic import atomic_file
from medusa_cli.support.files import recall, remember

from ..loop import Picked
from ..recipes import DEPTH_WEIGHT, TEACHER_TOP, Recipe
from ..text.dataset import Examples
from .layers import HeadInputs
from .loss import Everything, Likeliest, Teacher, heads_loss

DEVICE_SHARE = 0.7
"""Share of the free GPU memory that stored rows may take."""
LOSS_ROWS, LOSS_ROWS_GPU = 512, 8192
"""Rows whose logits are held at once in training: as many as a cache holds, and as many as keep a GPU busy."""
TEACHER_BLOCK = 512
"""The same for the teacher."""


class FileRows:
    """Rows of several arrays by number: on the device if they fit, else gathered from the files for each batch."""

    def __init__(self, shards: Sequence[NDArray[Any]], device: torch.device) -> None:
        self.device = device
        self.shards = list(shards)
        self.ends = np.cumsum([len(shard) for shard in self.shards])
        self.resident: Tensor | None = None
        needed = sum(shard.nbytes for shard in self.shards)
        if device.type == "cuda" and needed < DEVICE_SHARE * torch.cuda.mem_get_info(device)[0]:
            rows, kind = (int(self.ends[-1]), *self.shards[0].shape[1:]), self.shards[0].dtype
            self.resident = torch.empty(rows, dtype=torch.from_numpy(np.empty(0, kind)).dtype, device=device)
            for shard, end in zip(self.shards, self.ends, strict=True):
                self.resident[int(end) - len(shard) : int(end)] = torch.from_numpy(np.array(shard))

    def gather(self, rows: Tensor) -> Tensor:
        """rows [...] int64, anywhere -> [..., the shape of a row] on the device."""
        if self.resident is not None:
            return self.resident[rows.to(self.device)]
        wanted = rows.reshape(-1).cpu().numpy()
        first = self.shards[0]
        out = np.empty((len(wanted), *first.shape[1:]), dtype=first.dtype)
        owner = np.searchsorted(self.ends, wanted, side="right")
        for index in np.unique(owner):
            mine = owner == index
            shard = self.shards[index]
            out[mine] = shard[wanted[mine] - (int(self.ends[index]) - len(shard))]
        return torch.from_numpy(out).to(self.device).reshape(*rows.shape, *first.shape[1:])


class PickedRows:
    """Some rows of the corpus in memory: values [N, h] of `rows` [N], ascending."""

    def __init__(self, rows: NDArray[np.int64], values: Tensor) -> None:
        self.device, self._rows, self._values = values.device, torch.from_numpy(rows), values

    def gather(self, rows: Tensor) -> Tensor:
        """Like FileRows.gather(); all of `rows` must be among those held."""
        at = torch.searchsorted(self._rows, rows.cpu())
        return self._values[at.to(self.device)]


def matching_scale(embeddings: NDArray[np.float32], states: Tensor) -> float:
    """Factor that makes embeddings [E, h], on the whole, as large as hidden states [B, h].

    Stored embeddings are often ten times smaller: a head would learn from them ten times more slowly.
    """
    size = float(np.sqrt(np.mean(np.square(embeddings))))
    return float(np.float32(states.float().pow(2).mean().sqrt().item() / size)) if size > 0 else 1.0


class TokenEmbeddings:
    """Embeddings of the corpus tokens: matrix [E, h] float16 on the device, place [rows of the corpus] into it; scale:
    factor on the model's own."""

    def __init__(self, matrix: Tensor, place: NDArray[np.integer], scale: float = 1.0) -> None:
        self.matrix, self.scale = matrix, scale
        self.place = torch.from_numpy(place.astype(np.int32))

    def drafted(self, rows: Tensor, count: int) -> Tensor:
        """rows [B] -> [B, count, h]: the root of each row and the tokens after it (any token beyond the end)."""
        at = (rows.cpu()[:, None] + torch.arange(count)).clamp(max=len(self.place) - 1)
        return self.matrix[self.place[at].long().to(self.matrix.device)]


class Contexts:
    """What is before any row of a text, as in HeadInputs.context."""

    def __init__(
        self, starts: Sequence[int], of_prompt: Callable[[int], Tensor], of_rows: Callable[[Tensor], Tensor]
    ) -> None:
        """starts: first rows of the texts, ascending. of_prompt: for one of these, what is before the text [P, ..];
        of_rows: what rows [N] add to it, [N, ..]."""
        self._starts, self._of_prompt, self._of_rows = np.asarray(starts), of_prompt, of_rows

    def __call__(self, row: int) -> Tensor:
        start = int(self._starts[np.searchsorted(self._starts, row, side="right") - 1])
        before = self._of_prompt(start)
        return before if row == start else torch.cat((before, self._of_rows(torch.arange(start, row)).to(before)))


@dataclass(frozen=True)
class TextRows:
    """The corpus as training sees it. embeddings: for Hydra; teacher: (ids, p) rows for the teacher objective, or the
    output rows [D, h] of the whole distribution, in the dtype to multiply in; contexts: for a row, what is before it in
    its text, as in HeadInputs."""

    states: FileRows | PickedRows
    embeddings: TokenEmbeddings | None = None
    teacher: tuple[FileRows, FileRows] | Tensor | None = None
    contexts: Callable[[int], Tensor] | None = None

    @property
    def embedding_scale(self) -> float:
        """The factor on the token embeddings."""
        return 1.0 if self.embeddings is None else self.embeddings.scale

    def inputs(self, rows: Tensor, count: int, lengths: Sequence[int] | None = None) -> HeadInputs:
        """What `count` heads read at `rows` [B]."""
        embedded = self.embeddings.drafted(rows, count) if self.embeddings is not None else None
        context: list[Tensor] = []
        if self.contexts is not None and lengths is not None:
            first = rows[torch.tensor([0, *lengths[:-1]]).cumsum(0)].tolist()
            context = [self.contexts(row) for row in first]
        return HeadInputs(self.states.gather(rows), embedded, lengths, context)

    def taught(self, rows: Tensor, count: int) -> Teacher | None:
        """Distributions [B, count, ..] of the tokens that the heads draft; None without a teacher."""
        if self.teacher is None:
            return None
        at = rows.cpu()[:, None] + torch.arange(1, count + 1)
        if isinstance(self.teacher, Tensor):
            assert isinstance(self.states, FileRows)
            return Everything(self.states.gather(at.clamp(max=int(self.states.ends[-1]) - 1)), self.teacher)
        ids, p = self.teacher
        at = at.clamp(max=int(ids.ends[-1]) - 1)
        return Likeliest(ids.gather(at).long(), p.gather(at).float())


def noisy(inputs: HeadInputs, sequences: Tensor, recipe: Recipe, seed: int, embedding_scale: float = 1.0) -> HeadInputs:
    """`inputs` with uniform noise of up to alpha / sqrt(L h) in each place: L tokens of the text with its prompt, h
    numbers of a state (Hydra A.1, with NEFTune's scale: Jain et al. 2023, arXiv:2310.05914, as in the authors' program,
    github.com/zankner/Hydra, hydra_model.py).

    sequences [B]: L of each row. alpha: the recipe's noise for the states, its embedding_noise for the embeddings as
    the model has them, which come multiplied with embedding_scale.
    """
    if recipe.noise == 0 and recipe.embedding_noise == 0:
        return inputs
    generator = torch.Generator().manual_seed(seed)

    def added(values: Tensor, alpha: float) -> Tensor:
        if alpha == 0:
            return values
        scale = alpha * (sequences.float() * values.shape[-1]).rsqrt()
        drawn = (torch.rand(values.shape, generator=generator) * 2 - 1) * scale.view(-1, *[1] * (values.ndim - 1))
        return values.float() + drawn.to(values.device)

    states = added(inputs.states, recipe.noise)
    embedded = None if inputs.embedded is None else added(inputs.embedded, recipe.embedding_noise * embedding_scale)
    return HeadInputs(states, embedded, inputs.lengths, inputs.context)


@dataclass(frozen=True)
class DraftRows:
    """What drafts are trained on. source: the corpus's rows; examples: those to learn; output [D, h]: on the device, in
    the dtype to multiply in."""

    source: TextRows
    examples: Examples
    output: Tensor

    @cached_property
    def sequences(self) -> Tensor:
        """[rows] tokens of each row's text, its prompt included."""
        examples = self.examples
        return torch.from_numpy(np.repeat(examples.sequences or examples.lengths, examples.lengths))

    def rows(self, picked: Picked) -> Tensor:
        """[B] rows of the corpus."""
        return torch.from_numpy(self.examples.rows)[picked.index]

    def wanted(self, picked: Picked) -> Tensor:
        """[B, K] rows of `output`, negative if there is none."""
        return torch.from_numpy(self.examples.target)[picked.index].long().to(self.output.device)

    def loss(
        self, z: Tensor, picked: Picked, output: Tensor | None = None, depth_weight: float = DEPTH_WEIGHT
    ) -> Tensor:
        """heads_loss() of drafts z [K, B, h]. output: replaces the one matrix for all."""
        block = LOSS_ROWS_GPU if self.output.device.type == "cuda" else LOSS_ROWS
        taught = self.source.taught(self.rows(picked), len(z))
        shared = self.output if output is None else output
        return heads_loss(z, self.wanted(picked), shared, block, taught, depth_weight)


@torch.no_grad()
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

    The base's own next-token distribution, from the stored states: its `most` likeliest tokens (T, unless D is less),
    with their probabilities scaled to sum to 1. output [D, h] on the device, in the dtype to multiply in. Kept in
    `folder` as teacher.{ids,p}.npy, each written whole or not at all; computed anew if they are from other text or
    another draft vocabulary. on_rows may raise.
    """
    names = [folder / "teacher.ids.npy", folder / "teacher.p.npy"]
    top = min(most, len(output))
    vocabulary = hashlib.sha256(d2t.tobytes()).hexdigest()
    key = {"rows": rows, "top": top, "vocabulary": vocabulary, "dtype": str(output.dtype)}
    marker = folder / "teacher.json"
    if not (recall(marker) == key and all(name.exists() for name in names)):
        marker.unlink(missing_ok=True)
        # Written, not mapped: then a full disk is an ordinary error, not a bus error that ends the process.
        with atomic_file(names[0]) as ids_file, atomic_file(names[1]) as p_file:
            for file, kind in ((ids_file, np.int32), (p_file, np.float16)):
                header = {"descr": np.lib.format.dtype_to_descr(np.dtype(kind)), "fortran_order": False}
                np.lib.format.write_array_header_1_0(file, {**header, "shape": (rows, top)})
            for at in range(0, rows, TEACHER_BLOCK):
                picked = torch.arange(at, min(rows, at + TEACHER_BLOCK))
                best = (states.gather(picked).to(output.dtype) @ output.T).topk(top, dim=1)
                ids_file.write(best.indices.int().cpu().numpy().tobytes())
                p_file.write(torch.softmax(best.values.float(), dim=1).half().cpu().numpy().tobytes())
                on_rows(at + len(picked))
        remember(marker, key)
    ids, p = (FileRows([np.load(name, mmap_mode="r")], states.device) for name in names)
    return ids, p
