"""Whether the layer in torch drafts what the engine drafts: checked before anything is trained."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from medusa_cli import native
from medusa_cli.support.errors import MedusaError

from ..backbone.parity import Parity
from ..heads.layers import HeadInputs
from .fit import chain
from .layer import MtpLayer

LEAST_AGREEMENT = 0.97
"""A draft follows from the one before it, and from its state: what rounding moves adds up."""
TEXTS, MOST_PROMPT, ANSWER = 8, 128, 48
"""How many texts are compared, and tokens of each."""


@torch.no_grad()
def check(
    model: native.Model,
    layer: MtpLayer,
    embedded: Callable[[Sequence[int]], Tensor],
    output: Tensor,
    prompts: Sequence[Sequence[int]],
    threads: int,
    tie: float,
) -> Parity:
    """MedusaError if torch and the engine draft differently. model: opened with its layer; embedded: token embeddings
    [T, h]; output [D, h]: the rows of the first D tokens; tie: logits this close count as equal."""
    drafts = same = 0
    session = native.Session(model, drafter=model, tree=native.Tree(chain(layer.count)), n_threads=threads, n_ctx=512)
    reader = native.StatesReader(model, MOST_PROMPT + ANSWER, outputs=True, n_threads=threads)
    for prompt in (list(tokens[:MOST_PROMPT]) for tokens in prompts[:TEXTS]):
        answer = session.generate(prompt, max_tokens=ANSWER, ignore_eos=True)
        text = [*prompt, *answer.tokens]
        states = torch.from_numpy(reader.read(text).post_norm).to(output.device)
        rows, paths = _paths(text, len(prompt), answer.drafts, layer.count)
        z = layer(_inputs(text, states, len(prompt), embedded, paths))
        for row, step in zip(rows, answer.drafts, strict=True):
            for depth, token in enumerate(step[1:]):
                if token < len(output):
                    logits = output.float() @ z[depth, row]
                    drafts += 1
                    same += bool(logits.max() - logits[token] <= tie)
    if drafts == 0 or same < LEAST_AGREEMENT * drafts:
        raise MedusaError(
            f"{model.path}: torch and the engine agree on {same} of {drafts} drafts of the MTP layer, "
            f"{LEAST_AGREEMENT:.0%} are needed: it cannot be tuned"
        )
    return Parity(drafts, same / drafts)


def _paths(
    text: Sequence[int], first: int, drafts: Sequence[Sequence[int]], count: int
) -> tuple[list[int], list[list[int]]]:
    """The rows of the answer at which steps began, and for each row the tokens [count] that the layer reads: those of
    its step, else the text's. first: where the answer begins."""
    last = len(text) - 1
    paths = [[text[min(at + depth, last)] for depth in range(count)] for at in range(first, len(text))]
    rows, row = [], 0
    for step in drafts:
        rows.append(row)
        paths[row][: len(step) - 1] = step[:-1]
        row += 1
        for token in step[1:]:
            if first + row > last or token != text[first + row]:
                break
            row += 1
    return rows, paths


def _inputs(
    text: Sequence[int],
    states: Tensor,
    first: int,
    embedded: Callable[[Sequence[int]], Tensor],
    paths: Sequence[Sequence[int]],
) -> HeadInputs:
    """states [T, h]: after each token."""
    before = torch.cat((states.new_zeros(1, states.shape[1]), states[:-1]))
    context = torch.cat((embedded(text[:first]).to(states.device), before[:first]), dim=1)
    read = torch.stack([embedded(path) for path in paths]).to(states.device)
    return HeadInputs(before[first:], read, [len(paths)], [context])
