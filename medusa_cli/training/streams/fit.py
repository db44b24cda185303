"""Trains streams, measures how fast that is, and finds the ranks that trees are grown from."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from medusa_cli.decoding.tree_search import RANKS

from ..backbone.layers import TopLayers
from ..backbone.states import BaseRows, Embeddings, TextData, WholeText
from ..heads.fit import flat_teacher, ranks_by_text
from ..heads.loss import target_ranks
from ..heads.rows import FileRows, TextRows, TokenEmbeddings
from ..heads.torch_setup import matmul_dtype
from ..loop import Loop, Picked, rising_steps, text_batches
from ..recipes import PATIENCE, STREAMS_EVALUATIONS, TEACHER_TOP, StreamsRecipe
from ..text.dataset import Examples, Span
from .layers import Piece, Streams

SCALE_ROWS = 2048
"""States from which the sizes of learned vectors are taken."""
PIECE_ROWS = 32
"""As dataset.PIECE_ROWS: twice as many, since the layers read all that is before a piece for it alone."""
RANKED_ROWS = 1024
"""Rows ranked at a time, about."""
PROMPT, ANSWER = 64, 128
"""Tokens of each made-up text."""


@dataclass(frozen=True)
class StreamsPlan:
    """Everything the result depends on besides the rows. `data` identifies them, so that a checkpoint fits its data."""

    data: str
    objective: str
    streams: int
    first_layer: int
    seed: int
    steps: int
    batch: int
    device: str
    recipe: StreamsRecipe


def drafted(data: TextData, top: TopLayers, streams: Streams, picked: Picked) -> tuple[Tensor, Tensor | None]:
    """[streams, B, h] after the rows of one batch of pieces of texts, in bfloat16 if that is faster, and in shared
    mode, of whole ones, [answer_rows(), h] of the base; both after the final norm."""
    assert picked.lengths is not None
    if streams.shared:
        texts, entered = data.entered(picked)
        pieces = [Piece(len(text.fed), text.answer_at, rows) for text, rows in zip(texts, picked.lengths, strict=True)]
    else:
        firsts, entered = data.entered_up_to(picked)
        pieces = [Piece(first + rows, first, rows) for first, rows in zip(firsts, picked.lengths, strict=True)]
    roots = None
    if streams.sees_root:
        assert data.source.embeddings is not None
        roots = data.source.embeddings.drafted(data.drafts.rows(picked), 1)[:, 0]
    with torch.autocast(entered.device.type, torch.bfloat16, enabled=data.output.dtype == torch.bfloat16):
        context = streams.read(top, entered, pieces)
        z: Tensor = streams(top, context, roots)
    return z.float(), None if context.said is None else context.said.float()


def learned_together(examples: Examples, recipe: StreamsRecipe) -> Examples:
    """Texts as batches take them: in pieces, but whole where the base learns from all of their tokens."""
    return examples if recipe.shared else examples.in_pieces(PIECE_ROWS)


class StreamsFit(Loop):
    """Trains streams, in shared mode with their base. run()'s evaluate gets the streams."""

    plan: StreamsPlan
    evaluations, patience = STREAMS_EVALUATIONS, PATIENCE

    def __init__(self, plan: StreamsPlan, top: TopLayers, device: torch.device, make: type[Streams] = Streams) -> None:
        self.top, recipe = top, plan.recipe
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(plan.seed)
            self.streams = make(top, plan.streams, recipe).to(device)
        groups = [(self.streams.factors(), recipe.rate), (self.streams.vectors(), recipe.rate * recipe.vectors_rate)]
        super().__init__(plan, self.streams, groups, device)
        self.rising = rising_steps(plan.steps, recipe.warmup, 4)

    def _begin(self, data: TextData) -> None:
        if self.step == 0:
            states = torch.from_numpy(np.array(data.states.read(0)[:SCALE_ROWS]))
            embeddings = data.source.embeddings
            self.streams.set_scales(states, embeddings.matrix if embeddings is not None else None)

    def _loss(self, data: TextData, picked: Picked) -> Tensor:
        z, said = drafted(data, self.top, self.streams, picked)
        loss = data.drafts.loss(z, picked)
        if (task := self.plan.recipe.shared) is None:
            return loss
        assert said is not None
        return task.weight * loss + data.base_loss(said, data.answer_rows(picked), task.distils)


@torch.no_grad()
def rank_streams(
    top: TopLayers,
    streams: Streams,
    data: TextData,
    spans: Sequence[Span] | None = None,
    on_rows: Callable[[int], None] = lambda rows: None,
) -> list[NDArray[np.int64]]:
    """For each text of `spans` (None: for all) its [positions, streams] ranks (positions with all targets inside), as
    from heads.fit.rank_texts().

    on_rows(rows done so far) may raise.
    """
    wanted = None if spans is None else {span.start for span in spans}
    texts = [at for at, text in enumerate(data.states.texts) if wanted is None or text.span.start in wanted]
    parts: list[NDArray[np.int64]] = []
    for picked in text_batches(data.examples, RANKED_ROWS, texts):
        z, _ = drafted(data, top, streams, picked)
        parts.append(target_ranks(z, data.drafts.wanted(picked), data.output, RANKS).cpu().numpy())
        on_rows(sum(map(len, parts)))
    return ranks_by_text(parts, [data.examples.lengths[text] for text in texts], streams.count)


def measure_rate(
    top: TopLayers,
    plan: StreamsPlan,
    vocabulary: int,
    whole_vocabulary: int,
    device: torch.device,
    seconds: float = 1.5,
    clock: Callable[[], float] = time.monotonic,
) -> float:
    """Answer positions per second. vocabulary: tokens that streams choose from; whole_vocabulary: all tokens; clock:
    measures the seconds."""
    count, hidden = max(1, round(plan.batch / ANSWER)), top.shape.hidden
    rng, fed = np.random.default_rng(0), np.arange(PROMPT + ANSWER, dtype=np.int32)
    texts = [WholeText(Span(at * (ANSWER + 1), ANSWER + 1, ""), fed) for at in range(count)]
    states = Embeddings(texts, rng.standard_normal((len(fed), hidden), np.float32))
    rows = np.concatenate([np.arange(text.span.start, text.span.start + ANSWER) for text in texts])
    target = rng.integers(0, vocabulary, (len(rows), plan.streams), dtype=np.int32)
    total = int(rows[-1]) + 2
    teacher = flat_teacher(total, min(TEACHER_TOP, vocabulary), device) if plan.objective == "teacher" else None
    embeddings = TokenEmbeddings(torch.ones(1, hidden, dtype=torch.float16, device=device), np.zeros(total, np.int32))
    source = TextRows(FileRows([np.zeros((total, hidden), np.float16)], device), embeddings, teacher)
    output = torch.from_numpy(rng.standard_normal((vocabulary, hidden), np.float32) * 0.02)
    examples = learned_together(Examples(rows, target, [ANSWER] * count), plan.recipe)
    output = output.to(device, matmul_dtype(device))
    base = None
    if plan.recipe.shared is not None:
        everything = torch.zeros(whole_vocabulary, hidden, device=device, dtype=output.dtype)
        base = BaseRows(np.zeros(total, np.int32), everything)
    data = TextData(states, source, examples, output, base)
    return StreamsFit(plan, top, device).rate(data, len(rows), seconds, clock)
