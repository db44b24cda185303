"""All rows answer each prompt in turn, a few at a time between two answers of plain decoding, until the time is up."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from medusa_cli.bench.ablation.rows import Row
from medusa_cli.bench.ablation.samples import Sample
from medusa_cli.bench.methods import PLAIN
from medusa_cli.bench.protocol import Outcome, answered
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
"""Prompts considered, the shortest tried first."""
TRIAL_TOKENS = 16
TOKENS = (96, 64, 48, 32, 24, 16)
WANTED_ROUNDS = 16
MIN_ROUNDS = 4
"""A mean over fewer prompts says little: shorter answers come before fewer prompts."""
SLACK = 1.1
"""Factor between the time that a round is expected to take and the time that it should."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class Pace:
    """How long one row takes for an answer: seconds per token of the prompt and per token of the answer."""

    prompt: float
    token: float


def round_seconds(paces: Sequence[Pace], prompt_tokens: float, tokens: int) -> float:
    """Expected seconds for one prompt, answered once at each pace."""
    return SLACK * sum(pace.prompt * prompt_tokens + pace.token * tokens for pace in paces)


def answer_tokens(paces: Sequence[Pace], prompt_tokens: float, seconds: float, done: int) -> int:
    """The largest of TOKENS for which WANTED_ROUNDS fit, else for which MIN_ROUNDS do, else the smallest.

    done: how many rounds are over; the next one always counts.
    """
    for rounds in (WANTED_ROUNDS, MIN_ROUNDS):
        for tokens in TOKENS:
            if max(1, rounds - done) * round_seconds(paces, prompt_tokens, tokens) <= seconds:
                return tokens
    return TOKENS[-1]


class TimeUp(Exception):
    """No further answer may begin, and the last one does not count."""


@dataclass
class Found:
    """What has been measured so far. samples: by position in the list of rows."""

    samples: dict[int, list[Sample]] = field(default_factory=dict)
    prompts: int = 0
    max_tokens: int = 0
    passes_ms: dict[int, float] = field(default_factory=dict)
    complete: bool = False


class Bench:
    """plain: a session without drafts. session_of: gives a row's session. deadline: no row's answer begins after it."""

    def __init__(
        self,
        rows: Sequence[Row],
        plain: native.Session,
        session_of: Callable[[Row], native.Session],
        deadline: float,
        on_answer: Callable[[str], None] = lambda name: None,
        clock: Clock = time.monotonic,
    ) -> None:
        self.rows, self.plain, self.session_of = rows, plain, session_of
        self.deadline, self.on_answer, self.clock = deadline, on_answer, clock
        from medusa_cli import native

        self.paces: list[Pace] = []
        self._cancellation = native.Cancellation()
        self._stopped = False
        self.temperatures = list(dict.fromkeys(row.temperature for row in rows))

    def blocks(self, number: int) -> Iterator[tuple[float, list[int]]]:
        """(temperature, rows) in the order for prompt `number`: which row goes first changes."""
        for temperature in self.temperatures:
            members = [at for at, row in enumerate(self.rows) if row.temperature == temperature]
            first = number % len(members)
            turned = [*members[first:], *members[:first]]
            for at in range(0, len(turned), BLOCK):
                yield temperature, turned[at : at + BLOCK]

    def round(self, number: int, prompt: Prompt, tokens: Sequence[int], most: int) -> dict[int, Sample]:
        """The rows' answers to one prompt; if the time runs out, only those of complete blocks.

        Empty if plain decoding ends too early.
        """
        found: dict[int, Sample] = {}
        before: Outcome | None = None

        def answered_by(row: Row | None, temperature: float) -> Outcome:
            return self._answer(row, temperature, number, prompt, tokens, most)

        with contextlib.suppress(TimeUp):
            for temperature, block in self.blocks(number):
                if before is None or temperature != before.temperature:
                    before = answered_by(None, temperature)
                if before.decoded < MIN_TOKENS:
                    return {}
                answers = {at: answered_by(self.rows[at], temperature) for at in block}
                after = answered_by(None, temperature)
                found |= {at: Sample(answer, (before, after)) for at, answer in answers.items() if answer.decoded}
                before = after
        return found

    def stop(self) -> None:
        """The time is up: also ends the answer under way. Called from another thread."""
        self._stopped = True
        self._cancellation.cancel()

    def _answer(
        self, row: Row | None, temperature: float, seed: int, prompt: Prompt, tokens: Sequence[int], most: int
    ) -> Outcome:
        """The answer of a row, or of plain decoding. TimeUp if the time is up before or after it."""
        from medusa_cli import native

        name, session = (PLAIN, self.plain) if row is None else (row.name, self.session_of(row))
        self.on_answer(name)
        session.reset()
        accept = native.Accept(row.rule if row else "exact" if temperature > 0 else "greedy")
        sampling = native.Sampling(temperature=temperature, seed=seed)
        if self._stopped or self.clock() >= self.deadline:
            raise TimeUp
        done = session.generate(
            tokens, max_tokens=most, sampling=sampling, accept=accept, cancellation=self._cancellation
        )
        if self._stopped:
            raise TimeUp
        place = {"prompt_id": prompt.id, "category": prompt.category, "temperature": temperature}
        answer = Outcome.from_worker(answered(done), method=name, repeat=seed, **place)
        self.paces.append(Pace(answer.ttft_ms / 1e3 / len(tokens), answer.decode_ms / 1e3 / max(1, answer.decoded)))
        return answer

    def trial(self, prompts: Sequence[tuple[Prompt, Sequence[int]]]) -> tuple[list[Pace], dict[int, Sample]]:
        """Short answers of the rows to the shortest of the first prompts: their paces, and the samples.

        Graphs are built and memory is touched for the first time, so the samples only count if there is no time for
        others. MedusaError when plain decoding ends all answers at once, or the time is up.
        """
        for prompt, tokens in sorted(prompts[:TRIALS], key=lambda one: len(one[1])):
            self.paces.clear()
            if found := self.round(0, prompt, tokens, TRIAL_TOKENS):
                return list(self.paces), found
        if self._stopped or self.clock() >= self.deadline:
            raise MedusaError("time ran out before each row had one answer: give more --minutes")
        raise MedusaError("the model ends its answers at once: give other prompts with --data")


def pass_costs(timer: Timer, widths: Sequence[int], deadline: float, clock: Clock = time.monotonic) -> dict[int, float]:
    """Milliseconds of a pass over n tokens: medians of interleaved rounds, at least one, until `deadline`."""
    rounds: list[dict[int, float]] = []
    while not rounds or (clock() < deadline and len(rounds) < 9):
        rounds.append({width: pass_ms(timer, width) for width in widths})
    return {width: statistics.median(one[width] for one in rounds) for width in widths}


def measure(bench: Bench, prompts: Sequence[tuple[Prompt, Sequence[int]]], found: Found) -> None:
    """Fills `found`, which stays valid when Ctrl-C cuts the run short. After the last prompt the first comes again.

    The paces of the last round tell how long the answers of the next may be, and whether there is time for it.
    """
    alarm = threading.Timer(max(0.0, bench.deadline - bench.clock()), bench.stop)
    alarm.daemon = True
    alarm.start()
    try:
        _measure(bench, prompts, found)
    finally:
        alarm.cancel()


def _measure(bench: Bench, prompts: Sequence[tuple[Prompt, Sequence[int]]], found: Found) -> None:
    paces, trial = bench.trial(prompts)
    mean_prompt = statistics.mean(len(tokens) for _, tokens in prompts)
    number = 0
    while True:
        left = bench.deadline - bench.clock()
        most = answer_tokens(paces, mean_prompt, left, number)
        prompt, tokens = prompts[number % len(prompts)]
        if round_seconds(paces, len(tokens), most) > left:
            break
        bench.paces.clear()
        samples = bench.round(number, prompt, tokens, most)
        paces = list(bench.paces) if samples else paces
        number += 1
        for at, sample in samples.items():
            found.samples.setdefault(at, []).append(sample)
        found.prompts += bool(samples)
        found.max_tokens = max(found.max_tokens, most)
    for at, sample in trial.items():
        found.samples.setdefault(at, [sample])
    if not found.prompts:
        found.prompts, found.max_tokens = 1, TRIAL_TOKENS
