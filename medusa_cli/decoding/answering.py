"""One answer, from its prompt to its parts: thinking, text, and what ends either."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from medusa_cli.decoding import figures
from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.decoding.records import Generation, Piece
from medusa_cli.decoding.runtime import Engine, OnPrompt
from medusa_cli.decoding.settings import Settings
from medusa_cli.parts.call_formats import Schemas
from medusa_cli.parts.records import Parts
from medusa_cli.parts.splitter import PLAIN, Splitter

if TYPE_CHECKING:
    from medusa_cli import native

PROMPT_END = 48
"""Tokens at the end of a prompt that show whether the model thinks after it."""


OnPieces = Callable[[list[Piece]], None]


class Cancellation:
    """Ends an answer within one step, from any thread. It may take several runs of the engine."""

    def __init__(self) -> None:
        self.requested = False
        self._of_run: native.Cancellation | None = None

    def cancel(self) -> None:
        """The answer ends as "cancelled"."""
        self.requested = True
        self.end_run()

    def end_run(self) -> None:
        """Ends the run that is under way."""
        if (of_run := self._of_run) is not None:
            of_run.cancel()

    @contextlib.contextmanager
    def of_run(self) -> Iterator[native.Cancellation]:
        """What the next run of the engine gets."""
        from medusa_cli import native

        self._of_run = of_run = native.Cancellation()
        if self.requested:
            of_run.cancel()
        try:
            yield of_run
        finally:
            self._of_run = None


@dataclass
class _Run:
    """One run of the engine. steps: the tokens of each call with pieces; whether the model thought at its beginning."""

    steps: list[tuple[int, bool]] = field(default_factory=list)
    done: native.Generation | None = None


CLOSED = "closed"
"""Why a run ended: the thinking had as many tokens as it may have."""


class Answering:
    """Answers once. Where a limit cuts the thinking short, its end is written and becomes part of a second prompt.

    raw: what the model writes is not divided. tools: those that it may call, with the schemas of their arguments.
    one_call: the answer ends with the first call.
    """

    def __init__(
        self,
        engine: Engine,
        settings: Settings,
        seed: int,
        *,
        raw: bool = False,
        tools: Schemas | None = None,
        one_call: bool = False,
        on_step: OnPieces | None = None,
        on_prompt: OnPrompt | None = None,
        cancellation: Cancellation | None = None,
    ) -> None:
        self._engine, self._settings, self._seed = engine, settings, seed
        self._grammar, self._tools = PLAIN if raw else engine.grammar, tools
        self._one_call = one_call
        self._on_step, self._on_prompt = on_step, on_prompt
        self._cancellation = cancellation or Cancellation()
        self._pieces: list[Piece] = []
        self._tokens: list[int] = []
        self._called = False  # the one call that there may be
        self._thought = 0
        self._written = 0  # tokens of what ended the thinking
        self._ended = ""
        self._runs: list[_Run] = []

    def run(self, prompt: Sequence[int], begun: Sequence[int] = ()) -> Generation:
        """The answer to a prompt; begun: tokens that it already has. MedusaError as from Engine.check()."""
        end = self._engine.model.detokenize(prompt[-PROMPT_END:], special=True) if self._grammar.marks else ""
        # Within the thinking, texts that stop an answer do not: so the engine must not look for them.
        stop = self._settings.stop if self._grammar.marks else ()
        self._splitter = Splitter(self._grammar, end, stop, self._tools)
        for token in begun:
            self._splitter.feed(self._engine.model.detokenize([token]), token)
        whole = [*prompt, *begun]
        reason = self._go(whole, self._settings.max_tokens, self._seed)
        if reason == CLOSED:
            reason = "cancelled" if self._cancellation.requested else self._after_thinking(whole)
        rest = Parts() if self._called else self._few(self._splitter.finish())
        if rest != Parts():
            self._tell([Piece.left(rest)])
        found = self.record(reason)
        assert found is not None
        return found

    def _go(self, prompt: list[int], most: int, seed: int) -> str:
        """One run of the engine; why it ended."""
        settings = dataclasses.replace(self._settings, max_tokens=most)
        settings.stop = () if self._grammar.marks else settings.stop
        run = _Run()
        self._runs.append(run)
        self._ended = ""
        try:
            with self._cancellation.of_run() as of_run:
                run.done = self._engine.generate(
                    prompt, settings, seed, self._take, cancellation=of_run, on_prompt=self._on_prompt
                )
        except BaseException:
            if run.steps:  # else the engine may not have begun: its last answer could be the one before
                run.done = self._engine.last
            raise
        return self._ended or run.done.stop_reason

    def _after_thinking(self, prompt: list[int]) -> str:
        """Writes the end of the thinking, and lets the model go on."""
        assert self._grammar.marks is not None
        ending = self._grammar.marks.ending(tools=bool(self._tools))
        left = self._splitter.end_thinking(ending).thinking
        # Alone, some tokenizers would put a space in front of it.
        known, whole = (self._engine.model.tokenize(text, add_special=False) for text in ("x", f"x{ending}"))
        written = whole[len(known) :]
        self._tell([Piece("", None, False, thinking=left, written=tuple(written))])
        self._written, prompt = len(written), [*prompt, *self._tokens, *written]
        most = self._settings.max_tokens
        if most >= 0 and (most := most - len(self._tokens)) <= 0:
            return "length"
        if len(prompt) >= self._engine.n_ctx:
            return "context_full"
        return self._go(prompt, most, (self._seed + 1) % (MAX_SEED + 1))

    def _take(self, found: Sequence[native.Piece]) -> None:
        """The pieces of one step."""
        run, taken = self._runs[-1], []
        before, was_thinking = len(self._tokens), self._splitter.thinking
        for one in found:
            if self._ended:
                break
            thought = self._splitter.thinking
            parts = self._few(self._splitter.feed(one.text, one.token))
            thought = thought or self._splitter.thinking
            taken.append(Piece.of(one, parts, thought))
            if one.token >= 0:
                self._tokens.append(one.token)
                self._thought += thought
            if self._splitter.stopped or (self._one_call and parts.calls):
                self._ended = "stop"
            elif self._splitter.thinking and self._thought == self._settings.think:
                self._ended = CLOSED
        run.steps.append((len(self._tokens) - before, was_thinking))
        if self._ended:
            self._cancellation.end_run()
        self._tell(taken)

    def _few(self, parts: Parts) -> Parts:
        """Without the calls after the first one, if there may be only one."""
        if not self._one_call or not parts.calls:
            return parts
        self._called = True
        ids = [piece.id for piece in parts.call_pieces]
        last = max((at for at, one in enumerate(ids) if one == parts.calls[0].id), default=len(ids) - 1)
        return dataclasses.replace(parts, calls=parts.calls[:1], call_pieces=parts.call_pieces[: last + 1])

    def _tell(self, pieces: list[Piece]) -> None:
        self._pieces += pieces
        if self._on_step is not None and pieces:
            self._on_step(pieces)

    def record(self, reason: str = "cancelled") -> Generation | None:
        """What there is of the answer; None if it has not begun."""
        runs = [(run, run.done) for run in self._runs if run.done is not None]
        if not runs:
            return None
        stats = figures.merged([done.stats for _, done in runs])
        if self._thought:  # the first token of a run is the prompt's
            steps = [step for run, _ in runs for step in run.steps[1:] if step[0]]
            stats["parts"] = figures.of_parts(steps, self._thought, len(self._tokens) - self._thought)
        last = runs[-1][1]
        return Generation(
            text="".join(piece.text for piece in self._pieces),
            thinking="".join(piece.thinking for piece in self._pieces),
            tokens=self._tokens,
            thinking_tokens=self._thought,
            stop_reason=reason,
            prompt_tokens=runs[0][1].prompt_tokens + self._written,
            reused_tokens=runs[0][1].reused_tokens,
            loop_tokens=last.loop_tokens,
            stats=stats,
            calls=tuple(call for piece in self._pieces for call in piece.calls),
        )
