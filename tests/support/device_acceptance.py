"""Random trees accepted as the model's graph does it, on a GPU that is none, and on the host: run by tests.

    python device_acceptance.py SHAPES TREES

SHAPES trees, TREES times each with other logits and tokens. Prints JSON: {"trees", "deep", "nan"}: how many, with
accepted drafts, with NaN; on the first difference it fails.
"""

from __future__ import annotations

import json
import sys

import _native_testing as testing
import numpy as np
from numpy.typing import NDArray

from medusa_cli import native

Rows = NDArray[np.float32]


def random_tree(rng: np.random.Generator, nodes: int) -> native.Tree:
    choices: list[list[int]] = [[]]
    children = [0] * nodes
    while len(choices) < nodes:
        parent = int(rng.integers(max(0, len(choices) - 8), len(choices)))
        if len(choices[parent]) + 1 < len(choices[-1]):
            continue
        choices.append([*choices[parent], children[parent]])
        children[parent] += 1
    return native.Tree(choices[1:])


def random_logits(rng: np.random.Generator, nodes: int, vocabulary: int) -> Rows:
    """Of few values, so that most rows have ties; some with infinities, some with NaN."""
    logits = rng.integers(-3, 3, size=(nodes, vocabulary)).astype(np.float32)
    kind = rng.integers(5)
    if kind == 1:
        logits[rng.random(logits.shape) < 0.3] = -np.inf
    elif kind == 2:
        logits[rng.random(logits.shape) < 0.1] = np.inf
    elif kind == 3:
        logits[rng.random(logits.shape) < 0.05] = np.nan
    elif kind == 4:
        logits *= rng.choice(np.array([1e-30, 1.0, 1e30], dtype=np.float32))
    return logits


def random_tokens(rng: np.random.Generator, tree: native.Tree, logits: Rows) -> list[int]:
    """Distinct among siblings; mostly one of them is what the parent says."""
    vocabulary = logits.shape[1]
    tokens = [0] * tree.size
    for node in range(tree.size):
        children = [child for child in range(tree.size) if tree.parents[child] == node]
        drawn = [int(token) for token in rng.permutation(vocabulary)[: len(children)]]
        said = testing.argmax(logits[node].tolist())
        if children and said not in drawn and rng.random() < 0.8:
            drawn[int(rng.integers(len(drawn)))] = said
        for child, token in zip(children, drawn, strict=True):
            tokens[child] = token
    return tokens


def accept_on_host(tree: native.Tree, logits: Rows, tokens: list[int]) -> tuple[int, int]:
    node = 0
    while True:
        said = testing.argmax(logits[node].tolist())
        below = [child for child in range(1, tree.size) if tree.parents[child] == node and tokens[child] == said]
        if not below:
            return node, said
        node = below[0]


def main(shapes: int, trees: int) -> dict[str, int]:
    testing.pretend_device()
    rng = np.random.default_rng(0)
    deep = with_nan = 0
    for _ in range(shapes):
        nodes = int(rng.integers(1, 25))
        tree = random_tree(rng, nodes)
        vocabulary = int(rng.integers(nodes + 1, 80))
        logits = [random_logits(rng, nodes, vocabulary) for _ in range(trees)]
        tokens = [random_tokens(rng, tree, rows) for rows in logits]
        found = testing.accept_in_graph(tree, logits, tokens, "PRETENDED0")
        for rows, drafted, step in zip(logits, tokens, found, strict=True):
            # Sums of rows tell: the host looks at those itself.
            unclear = np.isnan(rows).any() or (np.isposinf(rows) & np.isneginf(rows).any(1, keepdims=True)).any()
            host = accept_on_host(tree, rows, drafted)
            assert step == (None if unclear else host), (tree.choices, rows, drafted, step, host)
            deep += host[0] > 0
            with_nan += bool(unclear)
    return {"trees": shapes * trees, "deep": deep, "nan": with_nan}


if __name__ == "__main__":
    print(json.dumps(main(int(sys.argv[1]), int(sys.argv[2]))))
