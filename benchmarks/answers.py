"""What answers say: loops, drafted text beside plain text.

    python benchmarks/answers.py loops MODEL [--data question.jsonl] [--penalties 1 1.05 1.1]
    python benchmarks/answers.py lossless [--model demo] [--nodes 16]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

from argparse import ArgumentParser
from dataclasses import KW_ONLY, dataclass
from pathlib import Path

import common
import lossless
from rich.table import Table

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.options import CHAT_TEMPERATURE, DraftOptions, EngineOptions
from medusa_cli.decoding.runtime import Engine, open_engine
from medusa_cli.decoding.settings import Settings
from medusa_cli.support.errors import MedusaError

POEM = "Write a short poem about the sea."


@dataclass
class Loops:
    """How many answers fall into a loop, by sampling, and what a penalty on repeats costs.

    Each prompt (without --data: one poem) is answered with each seed and each repeat penalty, at the temperature of a
    chat and otherwise with the defaults of the engine, loops not stopped. For each penalty: answers that ended by
    themselves; those that say the same 1 to 64 tokens over and over until their end (what `--stop-loops` ends); those
    in which decoding/loops.py finds a loop, which also counts tables and copied code; tokens per step up to there, and
    milliseconds of acceptance a step.
    """

    model: str
    _: KW_ONLY
    data: Path | None = None
    penalties: tuple[float, ...] = (1.0, 1.05, 1.1)
    seeds: int = 2
    tokens: int = 512

    def run(self) -> None:
        prompts = [POEM] if self.data is None else common.questions(self.data)
        engine = open_engine(self.model, EngineOptions(), DraftOptions(), common.MESSAGES)
        table = Table(
            "repeat penalty", "ended by themselves", "in a loop", "repeats by loops.py", "tokens per step, the others",
            "acceptance, ms a step", box=None,
        )  # fmt: skip
        for penalty in self.penalties:
            table.add_row(f"{penalty:g}", *self._cells(self._answers(engine, prompts, penalty)))
        common.show(table)

    def _answers(self, engine: Engine, prompts: list[str], penalty: float) -> list[native.Generation]:
        found = []
        for prompt in prompts:
            asked = engine.chat_tokens([{"role": "user", "content": prompt}])
            for seed in range(self.seeds):
                settings = Settings(CHAT_TEMPERATURE, repeat_penalty=penalty, max_tokens=self.tokens)
                engine.session.reset()
                found.append(engine.generate(asked, settings, seed, None))
        return found

    @staticmethod
    def _cells(found: list[native.Generation]) -> list[str]:
        from _native_testing import loop_end

        texts = [list(one.tokens) for one in found]
        whole = [one for one, text in zip(found, texts, strict=True) if loop_start(text) == len(text)]
        steps = sum(one.stats["steps"] - one.stats["plain_steps"] for one in whole)
        committed = sum(one.stats["tokens_per_step"] * (one.stats["steps"] - one.stats["plain_steps"]) for one in whole)
        accept = sum(one.stats["timings_ms"]["accept"] for one in whole) / sum(one.stats["steps"] for one in whole)
        ended = sum(one.stop_reason == "eos" for one in found)
        # By the definition of `--stop-loops`, which ends an answer as soon as one of its beginnings repeats itself.
        loops = sum(loop_end(text) is not None for text in texts)
        return [f"{ended} of {len(found)}", str(loops), str(len(found) - len(whole)), f"{committed / steps:.2f}",
                f"{accept:.3f}"]  # fmt: skip


@dataclass
class Lossless:
    """Greedy decoding with drafts against plain decoding, token for token.

    What counts as explained: benchmarks/lossless.py. Exits with 1 when a difference is not.
    """

    _: KW_ONLY
    data: Path = common.PROMPTS
    model: str = "demo"
    heads: Path | None = None
    nodes: int = 16
    max_tokens: int = 128

    def run(self) -> None:
        bench = common.Bench(self.model, self.heads, self.nodes)
        table = Table("prompt", "tokens", "first difference", "logit gap", "explained")
        results = []
        for asked in common.questions(self.data):
            prompt = common.chat_tokens(bench.model, asked)
            bench.reset()
            plain = bench.plain.generate(prompt, max_tokens=self.max_tokens)
            drafted = bench.drafting.generate(prompt, max_tokens=self.max_tokens)
            result = lossless.compare(bench.model, prompt, plain, drafted)
            results.append(result)
            cells = ("-", "-", "-")
            if result.first_difference is not None:
                cells = (str(result.first_difference), f"{result.gap:.3f}", "yes" if result.explained else "NO")
            table.add_row(" ".join(asked.split())[:48], str(result.tokens), *cells)
        differing = [result for result in results if result.first_difference is not None]
        unexplained = sum(not result.explained for result in differing)
        tokens, same = sum(result.tokens for result in results), len(results) - len(differing)
        common.show(
            table,
            f"{same} of {len(results)} texts identical ({tokens} tokens, {bench.tree.size} nodes)",
            f"{len(differing) - unexplained} differ by numerics alone, {unexplained} unexplained",
        )
        if unexplained:
            raise MedusaError(f"{unexplained} texts differ from plain decoding")


def parser() -> ArgumentParser:
    return common.parser(__doc__, Loops, Lossless)


if __name__ == "__main__":
    common.main(parser())
