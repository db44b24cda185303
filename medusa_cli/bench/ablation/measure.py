"""All rows answer each prompt in turn, a few at a time between two answers of plain decoding, until the time is up."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from medusa_cli.bench.ablation import budget
from medusa_cli.bench.ablation.budget import Pace
from medusa_cli.bench.ablation.rows import Row
from medusa_cli.bench.ablation.samples import Answer, Sample
from medusa_cli.decoding.pass_cost import Timer, pass_ms
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native

BLOCK = 4
"""Rows between two answers of plain decoding."""
MIN_TOKENS = 8
"""A shorter answer of plain decoding says nothing about speed."""
TRIALS = 8
"""Prompts, of which the shortest is tried first."""
LEAST_SHARE = 0.5
"""The next round may take this share of what the last one was expected to: that one may have been short."""
Clock = Callable[[], float]


class Session(Protocol):
    """What is needed of native.Session."""

    def reset(self) -> None: ...
    def generate(
        self, prompt: Sequence[int], *, max_tokens: int, sampling: native.Sampling, accept: native.Accept
    ) -> native.Generation: ...


@dataclass
class Found:
    """What has been measured so far. samples: by position in the list of rows."""

    samples: dict[int, list[Sample]] = field(default_factory=dict)
    prompts: int = 0
    max_tokens: int = 0
    passes_ms: dict[int, float] = field(default_factory=dict)
    complete: bool = False


class Bench:
    """plain: a session without drafts. session_of: that of a row. deadline: no answer of a row begins after it."""

    def __init__(
        self,
        rows: Sequence[Row],
        plain: Session,
        session_of: Callable[[Row], Session],
        deadline: float,
        on_answer: Callable[[str], None] = lambda name: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.rows, self.plain, self.session_of = rows, plain, session_of
        self.deadline, self.on_answer, self.clock = deadline, on_answer, clock
        self.paces: list[Pace] = []
        self.temperatures = list(dict.fromkeys(row.temperature for row in rows))

    def blocks(self, number: int) -> Iterator[tuple[float, list[int]]]:
        """(temperature, rows) in the order of prompt `number`: who goes first changes."""
        for temperature in self.temperatures:
            members = [at for at, row in enumerate(self.rows) if row.temperature == temperature]
            first = number % len(members)
            turned = [*members[first:], *members[:first]]
            for at in range(0, len(turned), BLOCK):
                yield temperature, turned[at : at + BLOCK]

    def answers(self) -> int:
        """Of one prompt, those of plain decoding with them."""
        blocks = [block for _, block in self.blocks(0)]
        return sum(map(len, blocks)) + len(blocks) + len(self.temperatures)

    def round(self, number: int, prompt: Prompt, tokens: Sequence[int], most: int) -> dict[int, Sample]:
        """The rows' answers to one prompt. Empty where plain decoding ends too early."""
        found: dict[int, Sample] = {}
        before: Answer | None = None
        temperature_before: float | None = None
        for temperature, block in self.blocks(number):
            if found and self.clock() > self.deadline:
                break
            if before is None or temperature != temperature_before:
                before = self._answer(self.plain, "plain", tokens, most, temperature, "", number)
            if before.tokens < MIN_TOKENS:
                return {}
            answers: dict[int, Answer] = {}
            for at in block:
                if found and self.clock() > self.deadline:
                    break
                row = self.rows[at]
                answers[at] = self._answer(self.session_of(row), row.name, tokens, most, temperature, row.rule, number)
            after = self._answer(self.plain, "plain", tokens, most, temperature, "", number)
            found |= {
                at: Sample(prompt.category, answer, (before, after)) for at, answer in answers.items() if answer.tokens
            }
            before, temperature_before = after, temperature
        return found

    def _answer(
        self, session: Session, name: str, prompt: Sequence[int], most: int, temperature: float, rule: str, seed: int
    ) -> Answer:
        from medusa_cli import native

        self.on_answer(name)
        session.reset()
        accept = native.Accept(rule or ("exact" if temperature > 0 else "greedy"))
        sampling = native.Sampling(temperature=temperature, seed=seed)
        done = session.generate(prompt, max_tokens=most, sampling=sampling, accept=accept)
        answer = Answer.of(done.tokens, done.stats)
        self.paces.append(Pace(answer.prompt_ms / 1e3 / len(prompt), answer.decode_ms / 1e3 / max(1, answer.tokens)))
        return answer

    def trial(self, prompts: Sequence[tuple[Prompt, Sequence[int]]]) -> tuple[list[Pace], dict[int, Sample]]:
        """Short answers of all rows to the shortest of the first prompts: their paces, and the samples.

        Graphs are built and memory is touched for the first time, so that the samples count only where there is time
        for no others. MedusaError when plain decoding ends all answers at once.
        """
        for prompt, tokens in sorted(prompts[:TRIALS], key=lambda one: len(one[1])):
            self.paces.clear()
            if found := self.round(0, prompt, tokens, budget.TRIAL_TOKENS):
                return list(self.paces), found
        raise MedusaError("the model ends its answers at once: give other prompts with --data")


def pass_costs(timer: Timer, widths: Sequence[int], deadline: float, clock: Clock = time.monotonic) -> dict[int, float]:
    """Milliseconds of a pass over n tokens: medians of interleaved rounds, at least one, until `deadline`."""
    rounds: list[dict[int, float]] = []
    while not rounds or (clock() < deadline and len(rounds) < 9):
        rounds.append({width: pass_ms(timer, width) for width in widths})
    return {width: statistics.median(one[width] for one in rounds) for width in widths}


def measure(bench: Bench, prompts: Sequence[tuple[Prompt, Sequence[int]]], found: Found) -> None:
    """Fills `found`, which stays valid when Ctrl-C cuts the run short. Prompts come again when all have come."""
    paces, trial = bench.trial(prompts)
    mean_prompt = statistics.mean(len(tokens) for _, tokens in prompts)
    found.max_tokens = budget.answer_tokens(paces, mean_prompt, bench.deadline - bench.clock())
    expected = budget.round_seconds(paces, mean_prompt, found.max_tokens)
    number = 0
    while bench.clock() + expected <= bench.deadline:
        prompt, tokens = prompts[number % len(prompts)]
        began = bench.clock()
        samples = bench.round(number, prompt, tokens, found.max_tokens)
        expected = max(budget.SLACK * (bench.clock() - began), LEAST_SHARE * expected)
        number += 1
        for at, sample in samples.items():
            found.samples.setdefault(at, []).append(sample)
        found.prompts += bool(samples)
    if not found.prompts:
        found.samples = {at: [sample] for at, sample in trial.items()}
        found.prompts, found.max_tokens = 1, budget.TRIAL_TOKENS
