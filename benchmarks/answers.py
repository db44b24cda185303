"""What answers say: loops, facts, drafted text beside plain text.

    python benchmarks/answers.py loops MODEL [--data question.jsonl] [--penalties 1 1.05 1.1]
    python benchmarks/answers.py facts MODEL [--temperatures 0.7 0.2]
    python benchmarks/answers.py lossless [--model demo] [--nodes 16]

`COMMAND --help` says what each of them measures.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser
from collections.abc import Iterator
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


FACTS = (
    ("What is the capital of France?", "Paris"),
    ("What is the capital of Japan?", "Tokyo"),
    ("What is the capital of Italy?", "Rome"),
    ("What is the capital of Germany?", "Berlin"),
    ("What is the capital of Egypt?", "Cairo"),
    ("Which planet of the solar system is the largest?", "Jupiter"),
    ("Which star is closest to the Earth?", "Sun"),
    ("Which ocean is the largest?", "Pacific"),
    ("What is the common name of H2O?", "water"),
    ("What do you get when you add 2 and 2?", "4|four"),
    ("How many days does a week have?", "7|seven"),
    ("How many months does a year have?", "12|twelve"),
    ("How many legs does a spider have?", "8|eight"),
    ("What is the opposite of hot?", "cold"),
    ("Who wrote Romeo and Juliet?", "Shakespeare"),
    ("Who painted the Mona Lisa?", "Leonardo|Vinci"),
    ("Who was the first president of the United States?", "Washington"),
    ("Which colour do you get when you mix blue and yellow?", "green"),
    ("Which gas do plants take in from the air?", "carbon dioxide|CO2"),
    ("Which language do most people in Brazil speak?", "Portuguese"),
    ("At which temperature in Celsius does water freeze?", "0|zero"),
    ("Which land animal is the fastest?", "cheetah"),
    ("Which force pulls things to the ground?", "gravity|gravitational"),
    ("Which currency is used in the United States?", "dollars?"),
)
"""Questions, and what an answer has to name."""


@dataclass
class Grid:
    """Answers by temperature, top-p and repeat penalty; otherwise the defaults of a chat."""

    model: str
    _: KW_ONLY
    temperatures: tuple[float, ...] = (CHAT_TEMPERATURE,)
    top_p: tuple[float, ...] = (0.95,)
    penalties: tuple[float, ...] = (1.0, 1.05, 1.1)

    def _samplings(self, tokens: int) -> Iterator[tuple[list[str], Settings]]:
        """Each with the cells that name it."""
        for temperature in self.temperatures:
            for top_p in self.top_p:
                for penalty in self.penalties:
                    settings = Settings(temperature, top_p=top_p, repeat_penalty=penalty, max_tokens=tokens)
                    yield [f"{temperature:g}", f"{top_p:g}", f"{penalty:g}"], settings

    def _opened(self) -> Engine:
        return open_engine(self.model, EngineOptions(), DraftOptions(), common.MESSAGES)

    @staticmethod
    def _answer(engine: Engine, question: str, settings: Settings, seed: int) -> native.Generation:
        engine.session.reset()
        return engine.generate(engine.chat_tokens([{"role": "user", "content": question}]), settings, seed, None)


NAMED = ("temperature", "top-p", "repeat penalty")


@dataclass
class Loops(Grid):
    """How many answers fall into a loop, by sampling, and what a penalty on repeats costs.

    Each prompt (without --data: one poem) is answered with each seed and each sampling, loops not stopped. For each
    sampling: answers that ended by themselves; those that `--stop-loops` would end; those in which decoding/loops.py
    finds a loop, which also counts tables and copied code; tokens per step up to there, and milliseconds of acceptance
    a step.
    """

    _: KW_ONLY
    data: Path | None = None
    seeds: int = 2
    tokens: int = 512

    def run(self) -> None:
        prompts = [POEM] if self.data is None else common.questions(self.data)
        engine = self._opened()
        table = Table(
            *NAMED, "ended by themselves", "in a loop", "repeats by loops.py", "tokens per step, the others",
            "acceptance, ms a step", box=None,
        )  # fmt: skip
        for named, settings in self._samplings(self.tokens):
            found = [self._answer(engine, prompt, settings, seed) for prompt in prompts for seed in range(self.seeds)]
            table.add_row(*named, *self._cells(found))
        common.show(table)

    @staticmethod
    def _cells(found: list[native.Generation]) -> list[str]:
        from _native_testing import loop_end

        texts = [list(one.tokens) for one in found]
        whole = [one for one, text in zip(found, texts, strict=True) if loop_start(text) == len(text)]
        steps = sum(one.stats["steps"] - one.stats["plain_steps"] for one in whole)
        committed = sum(one.stats["tokens_per_step"] * (one.stats["steps"] - one.stats["plain_steps"]) for one in whole)
        accept = sum(one.stats["timings_ms"]["accept"] for one in whole) / sum(one.stats["steps"] for one in whole)
        ended = sum(one.stop_reason == "eos" for one in found)
        loops = sum(loop_end(text) is not None for text in texts)
        return [f"{ended} of {len(found)}", str(loops), str(len(found) - len(whole)), f"{committed / steps:.2f}",
                f"{accept:.3f}"]  # fmt: skip


@dataclass
class Facts(Grid):
    """How many plain questions are answered right, by sampling: the answer names what it has to.

    Each of FACTS is asked with each seed and each sampling.
    """

    _: KW_ONLY
    seeds: int = 4
    tokens: int = 128

    def run(self) -> None:
        engine = self._opened()
        table = Table(*NAMED, "right", box=None)
        for named, settings in self._samplings(self.tokens):
            right = 0
            for question, word in FACTS:
                for seed in range(self.seeds):
                    said = engine.model.detokenize(list(self._answer(engine, question, settings, seed).tokens))
                    right += re.search(rf"\b({word})\b", said, re.IGNORECASE) is not None
            table.add_row(*named, f"{right} of {len(FACTS) * self.seeds}")
        common.show(table)


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
    return common.parser(__doc__, Loops, Facts, Lossless)


if __name__ == "__main__":
    common.main(parser())
