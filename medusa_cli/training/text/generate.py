"""The model writes its own training text: rounds of prompts, many sequences at a time, hidden states to disk.

A round's jobs are written down before it starts, so an interrupted round continues where it was. A round has second
turns of conversations that got their answer in the previous round, new conversations from the prompt source, and user
turns that the model made up itself.
"""

from __future__ import annotations

import contextlib
import json
import math
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.decoding.loops import loop_start
from medusa_cli.decoding.prompts import Message, chat_tokens
from medusa_cli.prompts.seeds.prompts import Conversation
from medusa_cli.support.atomic import atomic_file
from medusa_cli.support.errors import MedusaError

from ..recipes import TextRecipe
from ..resuming import Stopped
from .corpus import PRIVATE, Corpus, Text
from .dialogs import PromptSource, UserTurns
from .filter import TextFilter

MAX_PROMPT = 1024
TYPICAL_ANSWER = 220
ROUND_WAVES = 16
"""Answers per sequence slot and round: enough that slots idling at a round's end do not matter."""
SELF_WRITTEN = 0.2
"""Share of a round's new conversations that the model makes up (if the prompts are made up, not given)."""
LATER_TURN = "later turn"
"""Source of all answers but a conversation's first."""
FRUITLESS_ROUNDS = 3


@dataclass(frozen=True)
class Job:
    """One answer to generate. later: the user turns that follow it. source: see Text."""

    id: int
    group: str
    messages: list[Message]
    later: list[str]
    temperature: float
    source: str = "unknown"


@dataclass(frozen=True)
class Round:
    """number counts from 0; cursor and next_job: where the next round continues."""

    number: int
    cursor: int
    next_job: int
    jobs: list[Job]


class TextWriter:
    """Fills a corpus round by round."""

    def __init__(
        self,
        model: native.Model,
        corpus: Corpus,
        source: PromptSource,
        *,
        seed: int,
        parallel: int,
        threads: int,
        self_written: bool,
        recipe: TextRecipe = TextRecipe(),
    ) -> None:
        self.recipe = recipe
        self.model, self.corpus, self.source = model, corpus, source
        self.seed, self.parallel, self.threads = seed, parallel, threads
        self.max_answer = longest_answer(model.n_ctx_train, recipe)
        self.max_prompt = min(MAX_PROMPT, model.n_ctx_train - self.max_answer)
        has_template = model.chat_template is not None
        self.own_openings, self.talks = self_written and has_template, recipe.later_turns == "self-written"
        if self.talks and not has_template:
            raise MedusaError("later_turns: the model has no chat template, so it writes no turns of its own")
        self.user_turns = UserTurns(model, parallel, threads) if self.own_openings or self.talks else None
        self.filter = TextFilter(model, corpus)
        self.too_long = 0
        """How many prompts this writer has left out because they have over max_prompt tokens."""

    def run(
        self,
        tokens_left: Callable[[], float],
        should_stop: Callable[[], bool],
        on_tokens: Callable[[int], None] = lambda count: None,
        time_is_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Generates until tokens_left() <= 0 after a round, the prompts are used up, nothing new comes, time_is_up() or
        should_stop(). The last two are asked at every step. When time is up, unfinished answers are taken as they are;
        should_stop() leaves them out.

        on_tokens(n): n tokens of unfinished answers exist besides the corpus. All answers are on disk when this returns
        or raises. MedusaError if the model writes nothing that can be used.
        """
        fruitless = 0

        def ends() -> bool:
            return should_stop() or time_is_up()

        try:
            while not ends() and tokens_left() > 0:
                current = self._current_round() or self._new_round(tokens_left(), ends)
                if current is None or ends():
                    return
                before = self.corpus.tokens
                self._answer(current, should_stop, on_tokens, time_is_up)
                fruitless = 0 if self.corpus.tokens > before else fruitless + 1
                if fruitless < FRUITLESS_ROUNDS or ends():
                    continue
                if self.corpus.tokens:  # nothing new comes: what is there has to do
                    return
                raise MedusaError(
                    f"no usable text: the answers are empty or loops, or prompts have over {self.max_prompt} tokens"
                )
        finally:
            self.corpus.flush()

    @property
    def _round_file(self) -> Path:
        return self.corpus.folder / "round.json"

    def _stored_round(self) -> Round | None:
        """The round opened last."""
        if not self._round_file.exists():
            return None
        try:
            row = json.loads(self._round_file.read_text("utf-8"))
            return Round(row["number"], row["cursor"], row["next_job"], [Job(**job) for job in row["jobs"]])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise MedusaError(f"{self._round_file}: damaged ({error}), remove the folder to start over") from error

    def _current_round(self) -> Round | None:
        """The newest round if it is unfinished, with the jobs that still have no answer."""
        stored = self._stored_round()
        if stored is None or self.corpus.state.get("rounds", 0) > stored.number:
            return None
        done = self.corpus.done_jobs() | set(self.corpus.state.get("dropped", []))
        return replace(stored, jobs=[job for job in stored.jobs if job.id not in done])

    def _new_round(self, tokens_left: float, should_stop: Callable[[], bool]) -> Round | None:
        """Opens the next round and writes it down; None if there is nothing left to ask."""
        last = self._stored_round() or Round(-1, 0, 0, [])
        number = last.number + 1
        rng = random.Random(f"{self.seed} {number}")
        average = self.corpus.tokens / len(self.corpus.texts) if self.corpus.texts else TYPICAL_ANSWER
        size = max(4, min(math.ceil(tokens_left / average), ROUND_WAVES * self.parallel))
        jobs = self._later_turns(last, rng, should_stop)[:size]
        made_up = round(SELF_WRITTEN * (size - len(jobs))) if self.own_openings else 0
        fresh = self.source.take(last.cursor, size - len(jobs) - made_up)
        for at, conversation in enumerate(fresh):
            repeat = self.source.is_repeat(last.cursor + at)
            jobs.append(_opening(conversation, self._temperature(rng, repeat)))
        if self.user_turns and made_up:
            seen = {text.group for text in self.corpus.texts}
            written = self.user_turns.write(made_up, rng, seen, should_stop)
            jobs.extend(_opening(conversation, self._temperature(rng)) for conversation in written)
        if not jobs:
            return None
        numbered = [replace(job, id=last.next_job + at) for at, job in enumerate(jobs)]
        opened = Round(number, last.cursor + len(fresh), last.next_job + len(jobs), numbered)
        with atomic_file(self._round_file, PRIVATE) as file:
            file.write(json.dumps(asdict(opened)).encode("utf-8", "replace"))
        return opened

    def _later_turns(self, last: Round, rng: random.Random, should_stop: Callable[[], bool]) -> list[Job]:
        """Jobs for the next user turn of each conversation whose last answer ended by itself."""
        waiting = {job.id: job for job in last.jobs if job.later or self._may_go_on(job)}
        jobs = []
        for text, tokens in self.corpus.stored():
            job = waiting.get(text.job)
            if job is None or not text.complete:
                continue
            answer = self.model.detokenize(tokens[:-1].tolist()).strip()
            messages = [*job.messages, {"role": "assistant", "content": answer}]
            jobs.append(Job(0, job.group, messages, job.later, self._temperature(rng), LATER_TURN))
        if self.talks and self.user_turns:
            turns = self.user_turns.follow([job.messages for job in jobs], rng, should_stop)
        else:
            turns = [job.later[0] for job in jobs]
        return [
            replace(job, messages=[*job.messages, {"role": "user", "content": turn}], later=job.later[1:])
            for job, turn in zip(jobs, turns, strict=True)
            if turn is not None
        ]

    def _temperature(self, rng: random.Random, repeat: bool = False) -> float:
        """Of an answer. One to a prompt that was answered before is always sampled."""
        if repeat:
            return round(rng.uniform(0.6, 1.0), 2)
        return 0.0 if rng.random() < self.recipe.greedy else round(rng.uniform(0.3, 1.0), 2)

    def _may_go_on(self, job: Job) -> bool:
        """Whether the model writes another user turn."""
        return self.talks and sum(message["role"] == "user" for message in job.messages) < self.recipe.turns

    def _answer(
        self,
        current: Round,
        should_stop: Callable[[], bool],
        on_tokens: Callable[[int], None],
        time_is_up: Callable[[], bool],
    ) -> None:
        """Generates the round's answers into the corpus; counts the round as done unless stopped."""
        pairs = [(job, chat_tokens(self.model, job.messages, bare_if_no_template=True)) for job in current.jobs]
        self.too_long += sum(len(tokens) > self.max_prompt for _, tokens in pairs)
        pairs = [(job, tokens) for job, tokens in pairs if 0 < len(tokens) <= self.max_prompt]
        finished = 0

        def on_sequence(index: int, tokens: list[int], states: NDArray[np.float16] | None) -> bool:
            nonlocal finished
            assert states is not None
            finished += len(tokens)
            job, prompt = pairs[index]
            text = Text(job.id, job.group, len(tokens), False, job.source, job.temperature, len(prompt))
            if not self.filter.keep(text, prompt, tokens, states):
                self.corpus.state.setdefault("dropped", []).append(job.id)
            return not should_stop()

        def on_progress(total: int) -> bool:
            on_tokens(total - finished)
            if should_stop():
                raise Stopped
            return not time_is_up()

        if pairs:
            with contextlib.suppress(Stopped):
                native.collect(
                    self.model,
                    [tokens for _, tokens in pairs],
                    [job.temperature for job, _ in pairs],
                    max_tokens=self.max_answer,
                    n_parallel=self.parallel,
                    seed=(self.seed * 7919 + current.number) & 0x7FFFFFFF,
                    n_threads=self.threads,
                    hidden=True,
                    on_sequence=on_sequence,
                    on_progress=on_progress,
                    on_partial=lambda _, tokens: loop_start(tokens) == len(tokens),
                )
        on_tokens(0)
        if not should_stop() and not time_is_up():
            self.corpus.state.update(rounds=current.number + 1, dropped=[])
            self.corpus.flush()


def longest_answer(n_ctx_train: int, recipe: TextRecipe) -> int:
    """Tokens of the longest answer that a model trained on such contexts may write."""
    return min(recipe.longest_answer, max(16, n_ctx_train // 2))


def _opening(conversation: Conversation, temperature: float) -> Job:
    """The first answer of a conversation; it gets its number when the round is closed."""
    system = [{"role": "system", "content": conversation.system}] if conversation.system else []
    messages = [*system, {"role": "user", "content": conversation.turns[0]}]
    return Job(0, conversation.group, messages, list(conversation.turns[1:]), temperature, conversation.source)
