"""Runs the methods in turn, prompt by prompt, so that a slow spell of the machine hits all of them alike."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medusa_cli.bench.methods import LOOKAHEAD, LOOKAHEAD_NUMBERS, PLAIN, STOCK, Method
from medusa_cli.bench.protocol import Order, Outcome, Ready, Spec
from medusa_cli.bench.worker import Worker
from medusa_cli.decoding.drafting import may_use_heads
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.options import DraftOptions, EngineOptions
from medusa_cli.models.references import ModelRef
from medusa_cli.prompts.bench_set import Prompt
from medusa_cli.support import progress
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console

WARM_UP = "Count from one to twenty."
WARM_UP_TOKENS = 32
FEWEST_TOKENS = 2
"""Tokens of an answer: the first one is the prompt's, the second is timed."""


@dataclass(frozen=True)
class Plan:
    """What is measured. repeat: how often each prompt comes; seed: the first repeat's, the next ones count up.

    synth_accept: probability that a draft is accepted, whatever the model says. ref: the files of `model`, with its
    heads; None: each worker finds them.
    """

    model: str
    methods: Sequence[Method]
    prompts: Sequence[Prompt]
    max_tokens: int = 128
    repeat: int = 3
    temperatures: Sequence[float] = (0.0,)
    seed: int = 0
    engine: EngineOptions = field(default_factory=EngineOptions)
    draft: DraftOptions = field(default_factory=DraftOptions)
    synth_accept: float | None = None
    ref: ModelRef | None = None
    lookahead: str | None = None

    @property
    def generations(self) -> int:
        """How many there will be, not counting warm-up."""
        return len(self.methods) * len(self.prompts) * self.repeat * len(self.temperatures)

    def spec(self, method: Method) -> Spec:
        """What the worker of `method` loads."""
        model, draft = self.model, method.draft(self.draft)
        if self.ref is not None:
            model = str(self.ref.path)
            if self.ref.heads is not None and may_use_heads(draft):
                draft = dataclasses.replace(draft, heads=str(self.ref.heads.path))
        numbers = self.lookahead or LOOKAHEAD_NUMBERS
        return Spec(method.driver, model, self.engine, draft, numbers if method.name == LOOKAHEAD else None)

    def orders(self) -> Iterator[tuple[int, Prompt, Order]]:
        """(repeat, prompt, order), all prompts before the second repeat of any."""
        for repeat in range(self.repeat):
            for prompt in self.prompts:
                for temperature in self.temperatures:
                    seed = self.seed + repeat
                    yield repeat, prompt, Order(prompt.text, self.max_tokens, temperature, seed, self.synth_accept)


@dataclass
class Measurements:
    """What has been measured so far. predicted: by method, see Worker.predict().

    loops: answers that repeat themselves and are only measured up to there: which, and the tokens before the loop.
    """

    outcomes: list[Outcome] = field(default_factory=list)
    loops: list[dict[str, Any]] = field(default_factory=list)
    ready: dict[str, Ready] = field(default_factory=dict)
    predicted: dict[str, dict[str, float]] = field(default_factory=dict)
    complete: bool = False


def measure(plan: Plan, found: Measurements, console: Console) -> None:
    """Fills `found`, which stays valid when an exception (Ctrl-C, a worker's end) cuts the run short."""
    with contextlib.ExitStack() as stack:
        workers = _start(plan, found, console, stack)
        with progress.phase(console, "Measuring", "answers") as bar:
            bar.update(0, plan.generations)
            _run(plan, workers, found, bar)
        positions = [outcome.prompt_tokens + len(outcome.tokens) // 2 for outcome in found.outcomes]
        for worker in workers if plan.synth_accept is None else ():
            if worker.ready.tree_nodes > 1 and (promise := worker.predict(sum(positions) // len(positions))):
                found.predicted[worker.method.name] = promise
    found.complete = True


def _start(plan: Plan, found: Measurements, console: Console, stack: contextlib.ExitStack) -> list[Worker]:
    """One worker after another, each warmed up by an answer that does not count."""
    workers: list[Worker] = []
    with console.status("") as status:
        for method in plan.methods:
            status.update(f"Loading the model for {method.name}")
            worker = Worker(method, plan.spec(method))
            stack.callback(worker.close)
            worker.generate(Order(WARM_UP, min(plan.max_tokens, WARM_UP_TOKENS), 0.0, plan.seed))
            workers.append(worker)
            found.ready[method.name] = worker.ready
    for note in dict.fromkeys(note for worker in workers for note in worker.ready.notes):
        console.print(note, markup=False, soft_wrap=True)
    return workers


def _without_loops(workers: Sequence[Worker], found: Measurements) -> Callable[[Prompt, Order], Order]:
    """Gives an order fewer tokens if its answer begins to loop: from there on, drafts are right for free.

    To see that, each answer is first written once, untimed: by plain decoding, if that is among the methods.
    """
    by_name = {worker.method.name: worker for worker in workers}
    scout = by_name.get(PLAIN) or by_name.get(STOCK) or workers[0]
    known: dict[tuple[str, float, int], int] = {}

    def shortened(prompt: Prompt, order: Order) -> Order:
        if order.synth_accept is not None:
            return order
        key = prompt.id, order.temperature, order.seed if order.temperature > 0 else 0
        if key not in known:
            tokens = scout.untimed(order)
            start = loop_start(tokens)
            known[key] = order.max_tokens if start == len(tokens) else max(start, FEWEST_TOKENS)
            if start < len(tokens):
                names = ("prompt_id", "temperature", "seed", "tokens")
                found.loops.append(dict(zip(names, (*key, known[key]), strict=True)))
        return dataclasses.replace(order, max_tokens=known[key])

    return shortened


def _run(plan: Plan, workers: Sequence[Worker], found: Measurements, bar: progress.Bar) -> None:
    shortened = _without_loops(workers, found)
    for number, (repeat, prompt, whole) in enumerate(plan.orders()):
        order = shortened(prompt, whole)
        # Which one goes first changes from prompt to prompt.
        first = number % len(workers)
        for worker in (*workers[first:], *workers[:first]):
            bar.update(len(found.outcomes), plan.generations, f"{prompt.category}, {worker.method.name}")
            try:
                answer = worker.generate(order)
            except MedusaError as error:
                raise MedusaError(f"prompt {prompt.id}, {error}") from error
            place = {"prompt_id": prompt.id, "category": prompt.category, "temperature": order.temperature}
            found.outcomes.append(Outcome.from_worker(answer, method=worker.method.name, repeat=repeat, **place))
    bar.update(plan.generations, plan.generations)
