"""What a batch is made of, by row number of the corpus: hidden states, embeddings of the drafted tokens, targets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..text.dataset import Examples
from .layers import HeadInputs
from .loss import Everything, Likeliest, Teacher

DEVICE_SHARE = 0.7
"""Share of the free GPU memory that stored rows may take."""


class FileRows:
    """Rows of several arrays by number: on the device where they fit, else gathered from the files for each batch."""

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
        """As FileRows.gather(); all of `rows` must be among those held."""
        at = torch.searchsorted(self._rows, rows.cpu())
        return self._values[at.to(self.device)]


def matching_scale(embeddings: NDArray[np.float32], states: Tensor) -> float:
    """What embeddings [E, h] are multiplied with to be, on the whole, as large as hidden states [B, h].

    Stored embeddings are often ten times smaller: a head would learn what they say ten times slower.
    """
    size = float(np.sqrt(np.mean(np.square(embeddings))))
    return float(np.float32(states.float().pow(2).mean().sqrt().item() / size)) if size > 0 else 1.0


class TokenEmbeddings:
    """Embeddings of the corpus tokens: matrix [E, h] float16 on the device, place [rows of the corpus] into it; scale:
    what the model's own were multiplied with."""

    def __init__(self, matrix: Tensor, place: NDArray[np.integer], scale: float = 1.0) -> None:
        self.matrix, self.scale = matrix, scale
        self.place = torch.from_numpy(place.astype(np.int32))

    def drafted(self, rows: Tensor, count: int) -> Tensor:
        """rows [B] -> [B, count, h]: the root of each row and the tokens behind it (any token beyond the end)."""
        at = (rows.cpu()[:, None] + torch.arange(count)).clamp(max=len(self.place) - 1)
        return self.matrix[self.place[at].long().to(self.matrix.device)]


class Contexts(Protocol):
    """What a prefix layer sees before a text."""

    def before(self, row: int) -> Tensor:
        """[P, h]: states before the first row `row` of a text."""


@dataclass(frozen=True)
class TextRows:
    """The corpus as training sees it. embeddings: for Hydra; teacher: (ids, p) rows for the teacher objective, or the
    output rows [D, h] of the whole distribution, in the dtype to multiply in; contexts: of the texts' prompts."""

    states: FileRows | PickedRows
    embeddings: TokenEmbeddings | None = None
    teacher: tuple[FileRows, FileRows] | Tensor | None = None
    contexts: Contexts | None = None

    def inputs(self, rows: Tensor, count: int, lengths: Sequence[int] | None = None) -> HeadInputs:
        """What `count` heads read at `rows` [B]."""
        embedded = self.embeddings.drafted(rows, count) if self.embeddings is not None else None
        context: list[Tensor] = []
        if self.contexts is not None and lengths is not None:
            first = rows[torch.tensor([0, *lengths[:-1]]).cumsum(0)].tolist()
            context = [self.contexts.before(row) for row in first]
        return HeadInputs(self.states.gather(rows), embedded, lengths, context)

    def taught(self, rows: Tensor, count: int) -> Teacher | None:
        """Distributions [B, count, ..] for the token each head drafts; None without a teacher."""
        if self.teacher is None:
            return None
        at = rows.cpu()[:, None] + torch.arange(1, count + 1)
        if isinstance(self.teacher, Tensor):
            assert isinstance(self.states, FileRows)
            return Everything(self.states.gather(at.clamp(max=int(self.states.ends[-1]) - 1)), self.teacher)
        ids, p = self.teacher
        at = at.clamp(max=int(ids.ends[-1]) - 1)
        return Likeliest(ids.gather(at).long(), p.gather(at).float())


@dataclass(frozen=True)
class Picked:
    """One batch: indices [B] into Examples.rows. lengths: as in HeadInputs."""

    index: Tensor
    lengths: tuple[int, ...] | None


def steps_per_epoch(examples: Examples, batch: int, whole_texts: bool) -> int:
    """How many batches of about `batch` rows an epoch has."""
    most = len(examples.lengths) if whole_texts else len(examples.rows)
    return min(most, max(1, len(examples.rows) // batch))


class BatchOrder:
    """Batch number `step` of a run, the same whenever it is asked for: every epoch is its own random order."""

    def __init__(self, examples: Examples, batch: int, seed: int, whole_texts: bool) -> None:
        self.examples, self.batch, self.seed, self.whole_texts = examples, batch, seed, whole_texts
        self.per_epoch = steps_per_epoch(examples, batch, whole_texts)
        self._epoch, self._order = -1, torch.empty(0, dtype=torch.int64)

    def pick(self, step: int) -> Picked:
        """Step counts from 0."""
        epoch, at = divmod(step, self.per_epoch)
        if epoch != self._epoch:
            generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
            count = len(self.examples.lengths) if self.whole_texts else len(self.examples.rows)
            self._epoch, self._order = epoch, torch.randperm(count, generator=generator)
        if not self.whole_texts:
            return Picked(self._order[at * self.batch : (at + 1) * self.batch], None)
        count = len(self._order)
        texts = self._order[at * count // self.per_epoch : (at + 1) * count // self.per_epoch].tolist()
        return _texts(self.examples, texts)


def text_batches(examples: Examples, rows: int) -> Iterator[Picked]:
    """All rows in order, in batches of whole texts with up to `rows` rows (more where one text is longer)."""
    begin, held = 0, 0
    for text, length in enumerate(examples.lengths):
        if held and held + length > rows:
            yield _texts(examples, range(begin, text))
            begin, held = text, 0
        held += length
    if held:
        yield _texts(examples, range(begin, len(examples.lengths)))


def _texts(examples: Examples, texts: Sequence[int]) -> Picked:
    lengths = tuple(examples.lengths[text] for text in texts)
    parts = [torch.arange(examples.lengths[text]) + int(examples.starts[text]) for text in texts]
    return Picked(torch.cat(parts), lengths)
