"""Models and files that draft for them, each pair opened and decoded with in a process that libllama may end."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

PROMPT = list(range(3, 60, 2))
TOKENS = 16


@dataclass(frozen=True)
class Outcome:
    """What became of a pair. error: the line that refused it. crash: how the process ended.

    same: the text is that of plain decoding. drafted: steps that had drafts. ended: why there were no more.
    """

    error: str = ""
    crash: str = ""
    same: bool = False
    drafted: int = 0
    ended: str = ""


def _opened(model_path: str, drafter_path: str) -> Outcome:
    from medusa_cli import native
    from medusa_cli.support.errors import describe, is_reportable

    try:
        model = native.Model(model_path, n_gpu_layers=0, next_layers=model_path == drafter_path)
        layers = model
        if model_path != drafter_path:
            layers = native.Model(drafter_path, n_gpu_layers=0, next_layers=True)
        tree = native.Tree([[0], [0, 0]][: layers.next_layers])
        answer = native.Session(model, drafter=layers, tree=tree, n_ctx=256, n_threads=1).generate(
            PROMPT, max_tokens=TOKENS, ignore_eos=True
        )
    except Exception as error:
        if not is_reportable(error):
            raise
        return Outcome(error=describe(error))
    plain = native.Session(native.Model(model_path, n_gpu_layers=0), n_ctx=256, n_threads=1)
    expected = plain.generate(PROMPT, max_tokens=TOKENS, ignore_eos=True).tokens
    ended = answer.stats["drafts_ended"] or ""
    return Outcome(same=answer.tokens == expected, drafted=sum(len(one) > 1 for one in answer.drafts), ended=ended)


def outcomes(pairs: Sequence[tuple[Path, Path]]) -> list[Outcome]:
    """What becomes of each (model, drafter)."""
    found: list[Outcome] = []
    while len(found) < len(pairs):
        left = [[str(path) for path in pair] for pair in pairs[len(found) :]]
        done = subprocess.run(
            [sys.executable, __file__], input=json.dumps(left), capture_output=True, text=True, check=False
        )
        found += [Outcome(**json.loads(line)) for line in done.stdout.splitlines() if line.startswith("{")]
        if len(found) < len(pairs):
            last = (done.stderr.strip().splitlines() or [""])[-1]
            found.append(Outcome(crash=f"code {done.returncode}: {last}"))
    return found


def outcome(model: Path, drafter: Path) -> Outcome:
    return outcomes([(model, drafter)])[0]


if __name__ == "__main__":
    for one in json.load(sys.stdin):
        print(json.dumps(_opened(*one).__dict__), flush=True)
