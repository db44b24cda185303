"""What a step promises before any text is decoded: its expected tokens, and its cost in forward passes."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from medusa_cli.decoding import pass_cost, trees
from medusa_cli.decoding.drafting import FixedTree

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine

ROUNDS = 5


def predict(engine: Engine, n_threads: int, position: int) -> dict[str, float] | None:
    """Of a step with `position` tokens in the cache.

    None without stored accuracies, where lookup drafts, too, or with a dynamic tree.

    tokens_per_step: 1 + the chance of each node, by the accuracies stored with the heads. plain_ms, verify_ms: forward
    passes over one token and over the tree, medians of rounds that hold both.
    """
    if engine.heads is None or engine.plan.lookup or not isinstance(engine.plan.tree, FixedTree):
        return None
    choices = engine.session.tree.choices
    chances = [chance for chance in trees.probabilities(choices, engine.heads.accuracy) if chance is not None]
    if len(chances) != len(choices):
        return None

    size = engine.session.tree.size
    timer = pass_cost.make_timer(engine.model, size, position, n_threads, engine.session.n_ctx)
    rounds = [(pass_cost.pass_ms(timer, 1), pass_cost.pass_ms(timer, size)) for _ in range(ROUNDS)]
    plain_ms, verify_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
    return {"tokens_per_step": 1.0 + sum(chances), "plain_ms": plain_ms, "verify_ms": verify_ms}
