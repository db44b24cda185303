"""Where drafts miss, level by level.

    python benchmarks/misses.py [MODEL] --heads A.gguf B.gguf ... [--nodes 8] [--later 4096 2048 ...]

The model answers the prompts that `medusa tune` makes up, half greedily, half sampled. Half of the answers build a tree
for each heads file; on the other half, at every position where the tree gets as far as a level, the token that really
came is one of the drafts there, or it is outside the draft vocabulary, or beyond rank 10, or ranked, but in no node.
"If first": tokens per step if each token of that kind had been the likeliest of its level. --later: tokens per step, by
the same tree, if all levels but the first drafted from so many of the most frequent tokens alone. Streams are left out.
"""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import common
import numpy as np
from medusa_cli.converters.gguf.header import read_header
from medusa_cli.converters.heads import schema
from numpy.typing import NDArray
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding import tree_search
from medusa_cli.decoding.loops import loop_start
from medusa_cli.tuning import texts
from medusa_cli.tuning.decode import TEMPERATURES

Ranks = NDArray[np.integer]


@dataclass(frozen=True)
class Answer:
    """tokens, and the states [tokens, h] that they were drawn from."""

    tokens: list[int]
    states: NDArray[np.float32]


def answers(model: native.Model, count: int, length: int, threads: int) -> list[Answer]:
    """Up to where they begin to repeat themselves."""
    found: list[Answer] = []

    def on_sequence(index: int, tokens: list[int], states: NDArray[np.float16] | None) -> bool:
        assert states is not None
        kept = tokens[: loop_start(tokens)]
        found.append(Answer(kept, states[: len(kept)].astype(np.float32)))
        return True

    asked = [common.chat_tokens(model, text) for text in texts.prompts(None)[:count]]
    temperatures = [TEMPERATURES[at // 2 % 2] for at in range(len(asked))]
    native.collect(model, asked, temperatures, max_tokens=length, n_threads=threads, on_sequence=on_sequence)
    return found


def rows_of(path: Path, vocabulary: int) -> NDArray[np.int64]:
    """[vocabulary]: the row of each token in the draft vocabulary of a file, the most frequent tokens first; -1 for
    tokens that its heads cannot draft."""
    header, _ = read_header(path)
    map_ = next((tensor for tensor in header.tensors if tensor.name == schema.D2T), None)
    if map_ is None:
        return np.arange(vocabulary)
    rows = np.full(vocabulary, -1)
    tokens = np.fromfile(path, np.int32, map_.shape[0], offset=header.data_offset + map_.offset)
    rows[tokens] = np.arange(len(tokens))
    return rows


@dataclass(frozen=True)
class Kinds:
    """By position and level, [positions, levels]: what became of the token that came. in_tree: it was drafted, and so
    were those before it; reached: those before it were."""

    reached: NDArray[np.bool_]
    in_tree: NDArray[np.bool_]
    outside: NDArray[np.bool_]
    beyond: NDArray[np.bool_]

    @property
    def not_in_tree(self) -> NDArray[np.bool_]:
        return self.reached & ~self.in_tree & ~self.outside & ~self.beyond


def kinds(ranks: Ranks, inside: NDArray[np.bool_], tree: Sequence[tree_search.Choice]) -> Kinds:
    """ranks, inside [positions, levels]: inside: whether the token can be drafted at all."""
    nodes = set(tree)
    paths = [[tuple(row[: level + 1]) in nodes for level in range(len(row))] for row in ranks.tolist()]
    in_tree = np.array(paths, dtype=bool).reshape(ranks.shape)
    reached = np.concatenate([np.ones((len(ranks), 1), bool), in_tree[:, :-1]], axis=1)
    outside = reached & ~inside
    return Kinds(reached, in_tree, outside, reached & inside & (ranks >= tree_search.RANKS))


@dataclass(frozen=True)
class Misses:
    """See the top of the file. --answers: how many the model writes, --tokens: how long."""

    model: str = "demo"
    _: KW_ONLY
    heads: tuple[Path, ...]
    nodes: int = 8
    later: tuple[int, ...] = ()
    answers: int = 64
    tokens: int = 192
    threads: int = 0

    def run(self) -> None:
        model = native.Model(str(common.find_model(self.model).path))
        written = answers(model, self.answers, self.tokens, self.threads)
        table = Table("heads", "level", "reached", "drafted", "outside", "beyond 10", "ranked, in no node", "if first")
        for path in self.heads:
            self._add(table, path, model, written)
        common.show(table, f"{sum(len(one.tokens) for one in written)} tokens in {len(written)} answers")

    def _add(self, table: Table, path: Path, model: native.Model, written: Sequence[Answer]) -> None:
        heads = native.Heads(model, str(path))
        row_of = rows_of(path, model.n_vocab)
        ranked = [texts.ranks_of(heads, one.tokens, one.states) for one in written]
        built_on, scored = ranked[0::2], ranked[1::2]
        tree = tree_search.greedy_tree(tree_search.accuracy_table(built_on), self.nodes)
        rows = [
            np.array([row_of[one.tokens[at + 1 : at + 1 + ranks.shape[1]]] for at in range(len(ranks))])
            for one, ranks in zip(written[1::2], scored, strict=True)
        ]
        found = [kinds(ranks, of >= 0, tree) for ranks, of in zip(scored, rows, strict=True) if len(ranks)]
        per_step = tree_search.simulate(scored, tree)[0]
        table.add_row(path.name, "", "", f"{per_step:.3f} a step", "", "", "", "", style="bold")
        for level in range(max(map(len, tree))):
            reached, *shares = (
                np.concatenate([getattr(one, name)[:, level] for one in found])
                for name in ("reached", "in_tree", "outside", "beyond", "not_in_tree")
            )
            columns = [f"{share.sum() / max(1, reached.sum()):.3f}" for share in shares]
            mended = [self._mended(scored, found, tree, level, name) for name in ("outside", "beyond", "not_in_tree")]
            shown = " / ".join(f"{value:.2f}" for value in mended)
            table.add_row("", str(level + 1), f"{reached.mean():.3f}", *columns, shown)
        for size in self.later:
            kept = [ranks.copy() for ranks in scored]
            for ranks, of in zip(kept, rows, strict=True):
                if len(ranks):
                    ranks[:, 1:][of[:, 1:] >= size] = tree_search.RANKS
            per_step = tree_search.simulate(kept, tree)[0]
            table.add_row("", f"later: {size}", "", f"{per_step:.3f} a step", "", "", "", "")

    @staticmethod
    def _mended(
        scored: list[Ranks], found: list[Kinds], tree: list[tree_search.Choice], level: int, name: str
    ) -> float:
        """Tokens per step if the misses of one kind at one level had been first."""
        kept = [ranks for ranks in scored if len(ranks)]
        changed = [ranks.copy() for ranks in kept]
        for ranks, kind in zip(changed, found, strict=True):
            ranks[getattr(kind, name)[:, level], level] = 0
        return tree_search.simulate(changed, tree)[0]


def parser() -> ArgumentParser:
    return common.parser(__doc__, Misses)


if __name__ == "__main__":
    common.main(parser())
