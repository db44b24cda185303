"""Trains heads, and finds the ranks that trees are grown from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from medusa_cli.decoding.tree_search import RANKS, accuracy_table, greedy_tree, simulate

from ..loop import Loop, Picked, rising_steps, text_batches
from ..recipes import EVALUATIONS, GPU_BATCH, WARMUP_STEPS, WHOLE, Recipe
from ..text.dataset import Examples, Span, examples_of
from .layers import Drafting, Heads, HeadShape
from .loss import target_ranks
from .rows import DraftRows, FileRows, TextRows, TokenEmbeddings, noisy
from .start import weights_of
from .torch_setup import matmul_dtype

ROWS, ROWS_GPU = 512, 4096
"""Rows ranked at a time."""
ASSUMED_CONTEXT = 200
"""Rows before a piece of a text, its prompt included, where a rate is measured."""


@dataclass(frozen=True)
class FitPlan:
    """Everything the result depends on besides the rows. `data` identifies them, and heads that a training begins with,
    so that a checkpoint fits its data.

    vocabulary: rows of the heads' own output matrices, if the recipe has them.
    """

    data: str
    kind: str
    objective: str
    heads: int
    seed: int
    steps: int
    batch: int
    device: str
    recipe: Recipe
    vocabulary: int = 0

    def shape(self, hidden: int) -> HeadShape:
        own = self.vocabulary if self.recipe.lm_head == "own" else 0
        return HeadShape(self.kind, self.heads, hidden, self.recipe.blocks, self.recipe.prefix, own)


def default_batch(device: torch.device, rows: int, recipe: Recipe) -> int:
    """Positions per step; never more than the number of rows."""
    return min(rows, GPU_BATCH if device.type == "cuda" else recipe.batch)


class DraftsFit(Loop):
    """Trains what drafts. Its weights decay towards those of `start`. run()'s evaluate gets what drafts."""

    evaluations, read_every = EVALUATIONS, 10

    plan: FitPlan

    def __init__(self, plan: FitPlan, trained: nn.Module, drafting: Drafting, device: torch.device) -> None:
        """drafting: the same as `trained`."""
        self.recipe, self.patience, self.drafting = plan.recipe, plan.recipe.patience, drafting
        self.weights: list[Tensor] = list(trained.parameters())
        self.start = self.weights
        super().__init__(plan, trained, [(list(trained.parameters()), self.recipe.rate)], device, fused=True)
        self.rising = rising_steps(plan.steps, WARMUP_STEPS, 20)

    def _loss(self, data: DraftRows, picked: Picked) -> Tensor:
        inputs = data.source.inputs(data.rows(picked), self.drafting.count, picked.lengths)
        seed = self.plan.seed * 1_000_003 + self.step
        inputs = noisy(inputs, data.sequences[picked.index], self.recipe, seed, data.source.embedding_scale)
        z = self.drafting(inputs, data.output.dtype)
        return data.loss(z, picked, self.drafting.output(data.output), self.recipe.depth_weight)

    @torch.no_grad()
    def _updated(self) -> None:
        if self.recipe.decay:
            (group,) = self.optimizer.param_groups
            torch._foreach_lerp_(self.weights, self.start, group["lr"] * self.recipe.decay)


class Fit(DraftsFit):
    """Trains heads alone. Their weights decay towards those that they began with. Given ones are measured first, and
    kept if nothing is better."""

    def __init__(self, plan: FitPlan, hidden: int, device: torch.device, start: Path | None = None) -> None:
        """start: a file of heads to begin with. MedusaError if it holds others than planned."""
        self.shape = plan.shape(hidden)
        self.heads = fresh_heads(self.shape, plan.seed, device)
        self.given = None if start is None else weights_of(start, self.heads)
        self.measures_fresh = self.keeps_fresh = self.given is not None
        super().__init__(plan, self.heads, self.heads, device)
        self.whole_texts = self.shape.has_prefix

    def _begin(self, data: DraftRows) -> None:
        states = data.source.states.gather(torch.from_numpy(data.examples.rows)[: self.plan.batch])
        fresh = fresh_heads(self.shape, self.plan.seed, self.device, states, data.output)
        if self.given is not None:
            fresh.load_state_dict(self.given)
        if self.step == 0:
            self.heads.load_state_dict(fresh.state_dict())
        self.start = list(fresh.parameters())


def fresh_heads(
    shape: HeadShape, seed: int, device: torch.device, states: Tensor | None = None, output: Tensor | None = None
) -> Heads:
    """What training starts from and the weights decay towards. states [B, h]: typical ones, for Hydra++'s norm; output
    [D, h]: what the heads' own matrices start as."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        heads = Heads(shape).to(device)
    if heads.prefix is not None and states is not None:
        heads.prefix.keep_scale(states)
    if heads.outputs is not None and output is not None:
        with torch.no_grad():
            heads.outputs.copy_(output.expand_as(heads.outputs))
    return heads


def measure_rate(
    shape: HeadShape, recipe: Recipe, objective: str, vocabulary: int, device: torch.device, seconds: float = 1.5
) -> float:
    """Training positions per second of heads on this device, from made-up data."""
    plan, before = endless_plan(shape.kind, shape.count, recipe, objective, vocabulary, device), None
    if recipe.prefix != "none":
        before = torch.zeros(ASSUMED_CONTEXT, shape.hidden)
    return rate_of(Fit(plan, shape.hidden, device), shape.hidden, vocabulary, seconds, before)


def endless_plan(
    kind: str, count: int, recipe: Recipe, objective: str, vocabulary: int, device: torch.device
) -> FitPlan:
    """For measuring a rate."""
    batch = default_batch(device, 1 << 20, recipe)
    return FitPlan("", kind, objective, count, 0, 1 << 30, batch, device.type, recipe, vocabulary)


def rate_of(
    fit: DraftsFit,
    hidden: int,
    vocabulary: int,
    seconds: float = 1.5,
    before: Tensor | None = None,
) -> float:
    """Training positions per second, from made-up data. vocabulary: tokens to choose from; before: what is before each
    piece of a text, as in HeadInputs.context."""
    plan, device = fit.plan, fit.device
    batch, recipe = plan.batch, plan.recipe
    generator = torch.Generator().manual_seed(0)
    states = FileRows([torch.randn(batch, hidden, generator=generator).half().numpy()], device)
    output = (torch.randn(vocabulary, hidden, generator=generator) * 0.02).to(device, matmul_dtype(device))
    target = torch.randint(0, vocabulary, (batch, plan.heads), generator=generator, dtype=torch.int32).numpy()
    teacher: tuple[FileRows, FileRows] | Tensor | None = None
    embeddings = TokenEmbeddings(output[:batch].half(), np.zeros(batch, np.int32)) if plan.kind != "medusa" else None
    if plan.objective == "teacher":
        top = recipe.teacher_top
        teacher = output if top == WHOLE else flat_teacher(batch, min(top, vocabulary), device)
    examples = Examples(np.arange(batch, dtype=np.int64), target, [batch]).in_pieces()
    contexts = None if before is None else lambda row: before
    data = DraftRows(TextRows(states, embeddings, teacher, contexts), examples, output)
    return fit.rate(data, batch, seconds)


def flat_teacher(rows: int, top: int, device: torch.device) -> tuple[FileRows, FileRows]:
    """A teacher for which the first `top` tokens are equally likely."""
    ids = np.tile(np.arange(top, dtype=np.int32), (rows, 1))
    return FileRows([ids], device), FileRows([np.full((rows, top), 1 / top, np.float16)], device)


@torch.no_grad()
def rank_texts(
    heads: Drafting,
    source: TextRows,
    tokens: NDArray[np.integer],
    spans: Sequence[Span],
    t2d: NDArray[np.integer],
    output: Tensor,
) -> list[NDArray[np.int64]]:
    """For each text its [positions, heads] ranks (positions with all targets inside).

    The heads read the text's own tokens in place of drafted ones: accepted tokens are the text's tokens, so this is
    what the engine sees on every path it accepts. output [D, h] on the device, in the dtype to multiply in.
    """
    count = heads.count
    kept = [span for span in spans if span.length > count]
    data = DraftRows(source, examples_of(tokens, kept, t2d, count), output)
    parts = []
    for picked in text_batches(data.examples, ROWS_GPU if output.device.type == "cuda" else ROWS):
        z = heads(source.inputs(data.rows(picked), count, picked.lengths), output.dtype)
        parts.append(target_ranks(z, data.wanted(picked), heads.output(output), RANKS).cpu().numpy())
    return ranks_by_text(parts, data.examples.lengths, count)


def ranks_by_text(parts: Sequence[NDArray[np.int64]], lengths: Sequence[int], count: int) -> list[NDArray[np.int64]]:
    """Ranks [rows, count] of texts of `lengths` rows, one after another -> by text, without the rows at its end whose
    targets are not all inside."""
    ranks = np.concatenate(parts) if parts else np.zeros((0, count), np.int64)
    starts = np.cumsum([0, *lengths])
    return [
        ranks[start : start + rows - count + 1] for start, rows in zip(starts, lengths, strict=False) if rows >= count
    ]


def tokens_per_step(texts: Sequence[NDArray[np.integer]], nodes: int) -> float:
    """With the best tree of `nodes` nodes (root included) for these very texts: to compare heads, not to boast."""
    if sum(map(len, texts)) == 0:
        return 1.0
    return simulate(texts, greedy_tree(accuracy_table(texts), nodes))[0]
