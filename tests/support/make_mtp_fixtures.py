"""Writes tests/data/mtp_reference.json: what llama.cpp drafts. See mtp_reference.cpp for how to build the driver.

    python tests/support/make_mtp_fixtures.py DRIVER

Other kernels round otherwise, and random weights put some tokens close to a tie. So of many conversations those are
taken that come out alike when attention is computed in another way, and whose every choice has some distance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from itertools import islice
from pathlib import Path

import numpy as np
from architectures import TOKENS
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model
from mtp_reference import Reference, Step, Turn, write_references

STEPS = (14, 12, 10)
"""Of a conversation: a new text; one that is cut, in its prompt or its answer, and goes on; one that only goes on."""
CANDIDATES, TAKEN = 70, 8
GAP = 0.01
"""Between the two best logits; their deviation is about one."""
Order = tuple[int, int, list[int]]
"""What a line of the driver's file says: kept, steps, tokens."""


def conversation(rng: np.random.Generator) -> list[Order]:
    def tokens(most: int) -> list[int]:
        return [int(token) for token in rng.integers(0, TOKENS, rng.integers(1, most + 1))]

    prompt = tokens(40)
    cut = int(rng.integers(0, len(prompt) + STEPS[0]))  # each step decodes one token or more
    return [(0, STEPS[0], prompt), (cut, STEPS[1], tokens(12)), (-1, STEPS[2], tokens(6))]


def run(driver: str, files: list[Path], drafts: int, orders: list[Order], other: bool = False) -> list[list[dict]]:
    """The steps of each turn, all in one context. other: with attention computed in the other way."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{kept} {steps} {' '.join(map(str, tokens))}\n" for kept, steps, tokens in orders)
        file.flush()
        command = [driver, str(files[0]), str(drafts), file.name, *map(str, files[1:])]
        environment = {**os.environ, **({"MTP_PLAIN_ATTENTION": "1"} if other else {})}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    lines = map(json.loads, done.stdout.splitlines())
    return [list(islice(lines, steps)) for _, steps, _ in orders]


def reference(driver: str, folder: Path, name: str, agree: float) -> Reference:
    files = [write_mtp_model(folder / f"{name}.gguf", name, agree=agree)]
    if name == "gemma4":
        files.append(write_assistant(folder / "assistant.gguf", agree=agree))
    drafts = max(3, MTP_MODELS[name].layers)
    rng = np.random.default_rng(1)
    candidates = [conversation(rng) for _ in range(CANDIDATES)]
    orders = [order for candidate in candidates for order in candidate]
    first, second = (run(driver, files, drafts, orders, other) for other in (False, True))
    taken: list[Order] = []
    each = len(STEPS)
    for index, candidate in enumerate(candidates):
        turns, others = (found[index * each : (index + 1) * each] for found in (first, second))
        apart = all(step["gap"] >= GAP for turn in turns for step in turn)
        if apart and without_gaps(turns) == without_gaps(others):
            taken += candidate
    found = len(taken) // each
    print(f"{name} {agree}: {found} of {len(candidates)} conversations have no close choices", file=sys.stderr)
    assert found >= TAKEN
    taken = taken[: TAKEN * each]
    result: list[Turn] = []
    for (kept, _, tokens), steps in zip(taken, run(driver, files, drafts, taken), strict=True):
        if kept < 0:
            before = result[-1]
            kept = before.kept + len(before.tokens) - 1 + sum(1 + step.accepted for step in before.steps)
        result.append(Turn(kept, tokens, [Step(s["root"], s["draft"], s["accepted"]) for s in steps]))
    return Reference(name, agree, drafts, result)


def without_gaps(turns: list[list[dict]]) -> list[dict]:
    return [{**step, "gap": 0} for turn in turns for step in turn]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_references([reference(sys.argv[1], folder, name, agree) for name in MTP_MODELS for agree in (0.0, 0.67)])
