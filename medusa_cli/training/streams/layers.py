"""Streams through the top layers (converters/heads/stream_heads.py has the formulas and the positions).

The main stream runs first and leaves each layer's keys and values; the streams then run at chosen rows of it, their
attention in two parts under one softmax: over the rows up to their own, and over the streams before them. In shared
mode the main stream runs with the streams' adapters, and with a gradient; unlike in eq. 1 of the paper, it never
attends to streams, so that its output depends on the merged weights alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..backbone.layers import Adapters, Layer, Project, TopLayers, plain, rms_norm
from ..recipes import StreamsRecipe


@dataclass(frozen=True)
class Piece:
    """One text. length: rows fed; first, rows: streams start from its rows first .. first + rows - 1."""

    length: int
    first: int
    rows: int


@dataclass(frozen=True)
class Context:
    """What streams read from the main stream. states [B, h]: at the rows they start from, before the lowest layer.

    keys, values: of each layer, for all rows of all texts; pieces: the texts', in order. B: sum of their rows. said
    [S, h]: the main stream's result from each text's first such row to its end, after the final norm; None if nobody
    asked.
    """

    states: Tensor
    keys: Sequence[Tensor]
    values: Sequence[Tensor]
    pieces: Sequence[Piece]
    said: Tensor | None = None

    @property
    def positions(self) -> Tensor:
        """[B] position of each row in its text."""
        return torch.cat([torch.arange(p.first, p.first + p.rows, device=self.states.device) for p in self.pieces])


def read_context(
    top: TopLayers, entered: Tensor, pieces: Sequence[Piece], project: Project = plain, to_the_end: bool = False
) -> Context:
    """Runs the main stream. entered [R, h]: what the lowest layer reads, for whole texts. to_the_end: for `said`."""
    lengths = [piece.length for piece in pieces]

    def later(rows: Tensor) -> list[Tensor]:
        return [text[piece.first :] for text, piece in zip(rows.split(lengths), pieces, strict=True)]

    rotations, x = top.rotations(lengths, entered.device), entered
    keys, values = [], []
    for layer in top.layers:
        q, k, v = layer.attention_parts(x, rotations[layer.of.rope], project)
        keys.append(k)
        values.append(v)
        if to_the_end or layer is not top.layers[-1]:
            texts = zip(*(part.split(lengths) for part in (q, k, v)), strict=True)
            x = layer.leave(x, torch.cat([layer.attend(*text) for text in texts]), project)
    said = rms_norm(torch.cat(later(x)), top.output_norm, top.shape.eps) if to_the_end else None
    started = torch.cat([text[: piece.rows] for text, piece in zip(later(entered), pieces, strict=True)])
    return Context(started, keys, values, pieces, said)


class Streams(nn.Module):
    """`count` streams. Fresh ones are copies of the main stream at later positions: adapters add nothing.

    state_scale, root_scale: typical sizes that the learned vectors are multiples of, so that one learning rate suits
    models of any size: that of the states, and the factor that makes token embeddings as large.
    """

    def __init__(self, top: TopLayers, count: int, recipe: StreamsRecipe) -> None:
        super().__init__()
        hidden = top.shape.hidden
        self.count, self.shape = count, top.shape
        self.embedding = nn.Parameter(torch.zeros(count, hidden))
        self.sees_root = recipe.root_rank > 0
        self.root_a = nn.Parameter(torch.randn(recipe.root_rank, hidden) / hidden**0.5)
        self.root_b = nn.Parameter(torch.zeros(hidden, recipe.root_rank))
        self.adapters = Adapters(top, recipe.rank, recipe.alpha, dropout=0.0) if recipe.rank else None
        self.shared = recipe.shared is not None
        self.register_buffer("state_scale", torch.ones(()))
        self.register_buffer("root_scale", torch.ones(()))
        self.state_scale: Tensor
        self.root_scale: Tensor

    @torch.no_grad()
    def set_scales(self, states: Tensor, embeddings: Tensor | None) -> None:
        """states [B, h]: typical ones; embeddings [E, h]: of tokens. Uses medians, since some places are huge."""
        self.state_scale.copy_(states.float().abs().median())
        if embeddings is not None:
            size = embeddings.float().abs().median()
            self.root_scale.copy_(self.state_scale / size if size > 0 else size + 1)

    def vectors(self) -> list[nn.Parameter]:
        """Parameters added to states: stream embeddings."""
        return [self.embedding]

    def factors(self) -> list[nn.Parameter]:
        """Parameters of the adapters, and of the matrix for the root's embedding."""
        root = [self.root_a, self.root_b] if self.sees_root else []
        return root if self.adapters is None else [*root, *self.adapters.parameters()]

    @property
    def project(self) -> Project:
        return plain if self.adapters is None else self.adapters.project

    def read(self, top: TopLayers, entered: Tensor, pieces: Sequence[Piece]) -> Context:
        """read_context() of the base that these streams belong to; in shared mode they change it."""
        if self.shared:
            return read_context(top, entered, pieces, self.project, to_the_end=True)
        with torch.no_grad():
            return read_context(top, entered, pieces)

    def forward(self, top: TopLayers, context: Context, roots: Tensor | None) -> Tensor:
        """[count, B, h] after the final norm. roots [B, h]: token embeddings of the roots, as stored."""
        project = self.project
        count, x = self.count, self._entering(context.states.float(), roots)
        later = torch.arange(1, count + 1, device=x.device)
        rotations = top.rotations_at((context.positions[:, None] + later).flatten())
        for number, layer in enumerate(top.layers):
            q, k, v = layer.attention_parts(x, rotations[layer.of.rope], project)
            attended = self._attend(layer, (q, k, v), context, number)
            x = layer.leave(x, attended, project)
        normed = rms_norm(x, top.output_norm, top.shape.eps)
        return normed.view(-1, count, normed.shape[-1]).transpose(0, 1)

    def stored_embedding(self) -> Tensor:
        """[count, h]: added to states."""
        return self.embedding * self.state_scale

    def stored_root(self) -> tuple[Tensor, Tensor] | None:
        """[r, h], [h, r]: what token embeddings are multiplied with, one after the other."""
        return (self.root_a * self.root_scale, self.root_b) if self.sees_root else None

    def _entering(self, states: Tensor, roots: Tensor | None) -> Tensor:
        """[B * count, h], with the streams of a row side by side."""
        root = self.stored_root()
        if root is not None:
            assert roots is not None
            states = states + roots.float() @ root[0].T @ root[1].T
        return (states[:, None, :] + self.stored_embedding()).flatten(0, 1)

    def _attend(self, layer: Layer, parts: tuple[Tensor, Tensor, Tensor], context: Context, number: int) -> Tensor:
        """[B * count, heads * head_size]."""
        q, own_k, own_v = parts
        past = context.keys[number], context.values[number]
        return attend_texts(q, (own_k, own_v), past, context.pieces, self.count, layer.shape.query_scale)


def attend_texts(
    q: Tensor,
    own: tuple[Tensor, Tensor],
    past: tuple[Tensor, Tensor],
    pieces: Sequence[Piece],
    count: int,
    scale: float,
) -> Tensor:
    """attend() in each of several texts, whose rows lie side by side."""
    asked = len(q) // sum(piece.rows for piece in pieces)
    queries = q.split([piece.rows * asked for piece in pieces])
    mine = zip(queries, *(part.split([piece.rows * count for piece in pieces]) for part in own), strict=True)
    theirs = zip(*(part.split([piece.length for piece in pieces]) for part in past), strict=True)
    return torch.cat([attend(a, b, piece, count, scale) for a, b, piece in zip(mine, theirs, pieces, strict=True)])


def attend(own: tuple[Tensor, ...], past: tuple[Tensor, ...], piece: Piece, count: int, scale: float) -> Tensor:
    """In one text -> [rows * asked, heads * head_size]. own: queries [rows * asked, heads, head_size] of the last
    `asked` streams of each row, keys and values [rows * count, heads_kv, head_size] of all `count`; past: keys and
    values [length, heads_kv, head_size]."""
    q, own_k, own_v = own
    rows, heads, size = piece.rows, q.shape[1], q.shape[2]
    heads_kv, asked = own_k.shape[1], len(q) // piece.rows
    group, seen = heads // heads_kv, piece.first + rows
    k, v = (part[:seen].transpose(0, 1) for part in past)  # [heads_kv, seen, size]
    q = q.view(rows, asked, heads_kv, group, size).permute(2, 0, 1, 3, 4)  # [heads_kv, rows, asked, group, size]
    own_k, own_v = (part.view(rows, count, heads_kv, size).permute(2, 0, 1, 3) for part in (own_k, own_v))
    flat = q.reshape(heads_kv, rows, asked * group, size)
    before = flat.flatten(1, 2) @ k.transpose(1, 2)  # [heads_kv, rows * asked * group, seen]
    before = before.view(heads_kv, rows, asked * group, seen).float()
    places = torch.arange(seen, device=q.device)
    before = before.masked_fill(places > places[piece.first :, None, None], float("-inf"))
    among = (flat @ own_k.transpose(2, 3)).float().view(heads_kv, rows, asked, group, count)
    streams = torch.arange(count, device=q.device)
    asking = torch.arange(count - asked, count, device=q.device)
    among = among.masked_fill(streams > asking[:, None, None], float("-inf")).flatten(2, 3)
    weights = torch.softmax(torch.cat((before, among), dim=-1) * scale, dim=-1).to(v.dtype)
    main, side = weights.split((seen, count), dim=-1)
    mixed = (main.flatten(1, 2) @ v).view(heads_kv, rows, asked * group, size) + side @ own_v
    mixed = mixed.view(heads_kv, rows, asked, group, size).permute(1, 2, 0, 3, 4)
    return mixed.reshape(rows * asked, heads * size)
