"""Writes tests/data/{mtp,eagle,dflash}_reference.json: what llama.cpp drafts.

    python tests/support/make_draft_fixtures.py DRIVER [mtp|eagle3|dflash]

See draft_reference.cpp for how to build the driver.

Other kernels round otherwise, and random weights put some tokens close to a tie. So of many conversations those are
taken that come out alike when attention is computed in another way, and whose every choice has some distance.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
from architectures import TOKENS
from dflash_models import BLOCK, DFLASH_MODELS, write_dflash, write_dflash_target
from draft_references import DFLASH, EAGLE, MTP, Reference, Step, Turn, write_references
from eagle_models import EAGLE_MODELS, write_eagle, write_target
from mtp_models import MTP_MODELS, write_assistant, write_mtp_model

STEPS = (14, 12, 10)
"""Of a conversation: a new text; one that is cut, in its prompt or its answer, and goes on; one that only goes on."""
CANDIDATES, TAKEN = 70, 8
GAP = 0.01
"""Between the two best logits; their deviation is about one."""
EAGLE_DRAFTS = 4
Order = tuple[int, int, list[int]]
"""What a line of the driver's file says: kept, steps, tokens."""


def conversation(rng: np.random.Generator) -> list[Order]:
    def tokens(most: int) -> list[int]:
        return [int(token) for token in rng.integers(0, TOKENS, rng.integers(1, most + 1))]

    prompt = tokens(40)
    cut = int(rng.integers(0, len(prompt) + STEPS[0]))  # each step decodes one token or more
    return [(0, STEPS[0], prompt), (cut, STEPS[1], tokens(12)), (-1, STEPS[2], tokens(6))]


@dataclass(frozen=True)
class Drafting:
    """driver: the program, and which drafter it runs. files: of the model, and of the drafter if it is another."""

    driver: list[str]
    files: list[Path]
    drafts: int


def run(drafting: Drafting, orders: list[Order], other: bool = False) -> list[list[dict]]:
    """The steps of each turn, all in one context. other: with attention computed in the other way."""
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as file:
        file.writelines(f"{kept} {steps} {' '.join(map(str, tokens))}\n" for kept, steps, tokens in orders)
        file.flush()
        model, *drafters = map(str, drafting.files)
        command = [*drafting.driver, model, str(drafting.drafts), file.name, *drafters]
        environment = {**os.environ, **({"DRAFT_PLAIN_ATTENTION": "1"} if other else {})}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True, text=True)
    lines = map(json.loads, done.stdout.splitlines())
    return [list(islice(lines, steps)) for _, steps, _ in orders]


def mtp(driver: str, folder: Path, name: str, agree: float) -> Drafting:
    files = [write_mtp_model(folder / f"{name}.gguf", name, agree=agree)]
    if name == "gemma4":
        files.append(write_assistant(folder / "assistant.gguf", agree=agree))
    return Drafting([driver, "mtp"], files, max(3, MTP_MODELS[name].layers))


def eagle(driver: str, folder: Path, name: str, agree: float) -> Drafting:
    model = write_target(folder / f"{name}.gguf", name, agree=bool(agree))
    drafter = write_eagle(folder / f"eagle3-{name}.gguf", name, agree=bool(agree))
    return Drafting([driver, "eagle3"], [model, drafter], EAGLE_DRAFTS)


def dflash(driver: str, folder: Path, name: str) -> Drafting:
    model = write_dflash_target(folder / f"{name}.gguf", name)
    return Drafting([driver, "dflash"], [model, write_dflash(folder / f"dflash-{name}.gguf", name)], BLOCK - 1)


def reference(drafting: Drafting, name: str, agree: float) -> Reference:
    rng = np.random.default_rng(1)
    candidates = [conversation(rng) for _ in range(CANDIDATES)]
    orders = [order for candidate in candidates for order in candidate]
    first, second = (run(drafting, orders, other) for other in (False, True))
    taken: list[Order] = []
    each = len(STEPS)
    for index, candidate in enumerate(candidates):
        turns, others = (found[index * each : (index + 1) * each] for found in (first, second))
        good = all(step["gap"] >= GAP and len(step["draft"]) == drafting.drafts for turn in turns for step in turn)
        if good and without_gaps(turns) == without_gaps(others):
            taken += candidate
    found = len(taken) // each
    print(f"{name} {agree}: {found} of {len(candidates)} conversations have no close choices", file=sys.stderr)
    assert found >= TAKEN
    taken = taken[: TAKEN * each]
    result: list[Turn] = []
    for (kept, _, tokens), steps in zip(taken, run(drafting, taken), strict=True):
        if kept < 0:
            before = result[-1]
            kept = before.kept + len(before.tokens) - 1 + sum(1 + step.accepted for step in before.steps)
        result.append(Turn(kept, tokens, [Step(s["root"], s["draft"], s["accepted"]) for s in steps]))
    mean = 1 + np.mean([step.accepted for turn in result for step in turn.steps])
    print(f"{name} {agree}: {mean:.2f} tokens per step", file=sys.stderr)
    return Reference(name, agree, drafting.drafts, result)


def without_gaps(turns: list[list[dict]]) -> list[dict]:
    return [{**step, "gap": 0} for turn in turns for step in turn]


def main(driver: str, kinds: list[str]) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if "mtp" in kinds:
            pairs = [(name, agree) for name in MTP_MODELS for agree in (0.0, 0.67)]
            write_references(MTP, [reference(mtp(driver, folder, *pair), *pair) for pair in pairs])
        if "eagle3" in kinds:
            pairs = [(name, agree) for name in EAGLE_MODELS for agree in (0, 1)]
            write_references(EAGLE, [reference(eagle(driver, folder, *pair), *pair) for pair in pairs])
        if "dflash" in kinds:
            write_references(DFLASH, [reference(dflash(driver, folder, name), name, 0) for name in DFLASH_MODELS])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or ["mtp", "eagle3", "dflash"])
