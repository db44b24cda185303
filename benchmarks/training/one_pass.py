"""Speculation and verification in one pass (Speculative Streaming 3.1.2): a reference in torch, one text at a time.

Every node of a tree of drafts runs through the top layers with its own streams beside it. So the pass that judges the
nodes also leaves the drafts behind whichever of them is the last to be accepted. The token behind that node is not
known while its streams run: stream j drafts the j-th token after it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from medusa_cli.decoding.tree_search import Choice
from medusa_cli.training.backbone.layers import Layer, Project, Rotation, TopLayers, plain, rms_norm
from medusa_cli.training.streams.layers import Streams

NOTHING = -1
"""The parent of a row that only has the text before it."""


@dataclass(frozen=True)
class Answer:
    """steps: passes after the prompt's."""

    tokens: list[int]
    steps: int


@dataclass(frozen=True)
class Passed:
    """After the final norm: said [rows, h] of the rows themselves, drafted [rows that draft, streams, h]."""

    said: Tensor
    drafted: Tensor


class OnePass:
    """A text that grows by whole passes.

    model: all layers; streams run through those from `first` on, which change with the streams' adapters. mutual: the
    main stream attends to the streams that start at its row (equation 1). d2t: the draft vocabulary, as tokens.
    """

    def __init__(self, model: TopLayers, first: int, streams: Streams, d2t: Tensor, mutual: bool) -> None:
        self.model, self.first, self.streams, self.d2t, self.mutual = model, first, streams, d2t, mutual
        self.drafts = model.output[d2t]
        shape = (0, model.shape.heads_kv, model.shape.head_size)
        self.cache = [(torch.zeros(shape), torch.zeros(shape)) for _ in model.layers]
        self._new: list[tuple[Tensor, Tensor]] = []

    @property
    def length(self) -> int:
        """Rows of the text that are kept."""
        return len(self.cache[0][0])

    @torch.no_grad()
    def run(self, tokens: Sequence[int], parents: Sequence[int], drafting: Sequence[int]) -> Passed:
        """Rows behind the text, each after its parent among them (an earlier one, or NOTHING). drafting: rows whose
        streams run. Nothing is kept until keep()."""
        model, count = self.model, self.streams.count
        among = ancestors(parents)
        at = self.length + among.sum(dim=1) - 1
        sees = torch.cat((torch.ones(len(tokens), self.length, dtype=torch.bool), among), dim=1)
        x, rotations, self._new = model.embedded(tokens), model.rotations_at(at), []
        for number, layer in enumerate(model.layers):
            if number == self.first:
                side = x[list(drafting), None] + self.streams.stored_embedding()
                ahead = torch.arange(1, count + 1)
                rotations = model.rotations_at(torch.cat((at, (at[list(drafting), None] + ahead).flatten())))
                sees = self._with_streams(sees, drafting)
                x = torch.cat((x, side.flatten(0, 1)))
            project = self.streams.project if number >= self.first else plain
            x = self._through(layer, number, x, rotations[layer.of.rope], sees, project, len(tokens))
        said, drafted = rms_norm(x, model.output_norm, model.shape.eps).split((len(tokens), len(x) - len(tokens)))
        return Passed(said, drafted.view(len(drafting), count, -1))

    def keep(self, rows: Sequence[int]) -> None:
        """Adds rows of the last pass to the text."""
        chosen = list(rows)
        self.cache = [
            (torch.cat((k, new_k[chosen])), torch.cat((v, new_v[chosen])))
            for (k, v), (new_k, new_v) in zip(self.cache, self._new, strict=True)
        ]

    def answer(self, prompt: Sequence[int], tree: Sequence[Choice], most: int, ends: Callable[[int], bool]) -> Answer:
        """The likeliest tokens, up to one that ends(). tree: which candidates are drafted, as in tree_search, which
        knows nothing of the first of all tokens; the streams run for each of its nodes."""
        passed = self.run(prompt, range(-1, len(prompt) - 1), [len(prompt) - 1])
        self.keep(range(len(prompt)))
        parents = parents_of(tree)
        tokens, steps = [self._likeliest(passed.said[-1])], 0
        while not ends(tokens[-1]) and len(tokens) < most:
            nodes = [tokens[-1], *self._drafted(passed.drafted[-1], tree)]
            passed, steps = self.run(nodes, parents, range(len(nodes))), steps + 1
            path, token = [0], self._likeliest(passed.said[0])
            tokens.append(token)
            while not ends(token) and (child := _child(nodes, parents, path[-1], token)) is not None:
                path.append(child)
                token = self._likeliest(passed.said[child])
                tokens.append(token)
            self.keep(path)
            passed = Passed(passed.said[path], passed.drafted[path])
        return Answer(tokens[:most], steps)

    def _with_streams(self, sees: Tensor, drafting: Sequence[int]) -> Tensor:
        """sees [rows, seen] and the streams' rows and columns: each stream sees what its row sees, the streams of that
        row up to itself, and no others."""
        count, rows = self.streams.count, len(sees)
        streams = len(drafting) * count
        own = torch.block_diag(*(torch.ones(count, count).tril() for _ in drafting)).bool()
        of_row = torch.zeros(rows, streams, dtype=torch.bool)
        if self.mutual:
            for number, row in enumerate(drafting):
                of_row[row, number * count : (number + 1) * count] = True
        theirs = sees[list(drafting)].repeat_interleave(count, dim=0)
        return torch.cat((torch.cat((sees, of_row), dim=1), torch.cat((theirs, own), dim=1)))

    def _through(
        self, layer: Layer, number: int, x: Tensor, rotation: Rotation, sees: Tensor, project: Project, rows: int
    ) -> Tensor:
        """One layer. rows: how many of x are the text's own, whose keys and values may be kept."""
        q, k, v = layer.attention_parts(x, rotation, project)
        self._new.append((k[:rows], v[:rows]))
        group = q.shape[1] // k.shape[1]
        past_k, past_v = self.cache[number]
        keys, values = (torch.cat(parts).repeat_interleave(group, dim=1) for parts in ((past_k, k), (past_v, v)))
        scores = torch.einsum("qhd,khd->hqk", q, keys) * layer.shape.query_scale
        weights = scores.masked_fill(~sees, float("-inf")).softmax(dim=-1)
        return layer.leave(x, torch.einsum("hqk,khd->qhd", weights, values).flatten(1), project)

    def _likeliest(self, said: Tensor) -> int:
        return int((self.model.output @ said).argmax())

    def _drafted(self, z: Tensor, tree: Sequence[Choice]) -> list[int]:
        """The tokens of the tree's nodes, from the states [streams, h] of the last row's streams."""
        if not tree:
            return []
        most = 1 + max(choice[-1] for choice in tree)
        likeliest = self.d2t[(z @ self.drafts.T).topk(most, dim=1).indices]
        return [int(likeliest[len(choice) - 1, choice[-1]]) for choice in tree]


def ancestors(parents: Sequence[int]) -> Tensor:
    """[rows, rows]: whether a row sees another one: itself, its parent, and so on."""
    sees = torch.eye(len(parents), dtype=torch.bool)
    for row, parent in enumerate(parents):
        if parent != NOTHING:
            sees[row] |= sees[parent]
    return sees


def parents_of(tree: Sequence[Choice]) -> list[int]:
    """Of the root and the nodes of a tree, which names parents before children."""
    place = {(): 0, **{choice: at for at, choice in enumerate(tree, start=1)}}
    return [NOTHING, *(place[choice[:-1]] for choice in tree)]


def _child(nodes: Sequence[int], parents: Sequence[int], parent: int, token: int) -> int | None:
    return next((at for at, node in enumerate(nodes) if parents[at] == parent and node == token), None)
