"""One answer, from its prompt to its parts: thinking, text, and what ends either."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding import figures
from medusa_cli.decoding.forced_calls import WrittenCall
from medusa_cli.decoding.options import MAX_SEED
from medusa_cli.decoding.records import Generation, Piece
from medusa_cli.decoding.runtime import Engine, OnPrompt
from medusa_cli.decoding.settings import Settings
from medusa_cli.parts.call_formats import Schemas
from medusa_cli.parts.records import CallPiece, Ids, Parts
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
BEGINS = "begins"
"""Why a run ended: the answer begins, which has to follow a grammar."""
ARGUES = "argues"
"""Why a run ended: the arguments of a strict tool begin."""


class Answering:
    """Answers once. Where a limit cuts the thinking short, its end is written and becomes part of a second prompt.

    A grammar holds for the answer, not for the thinking: where the one ends and the other begins, a further run does.
    So it is with the arguments of strict tools, in a free answer.

    raw: what the model writes is not divided. tools: those that it may call, with the schemas of their arguments.
    one_call: the answer ends with the first call. call: the answer is this call. strict: what arguments of tools
    follow.
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
        call: WrittenCall | None = None,
        strict: Mapping[str, native.Grammar] | None = None,
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
        self._call = call
        self._structure = settings.structure if call is None else call.structure
        self._strict = strict if strict and self._structure is None else {}
        self._arguments: native.Grammar | None = None  # what this run follows
        self._head = ""  # of a call: what the token had before the arguments
        self._fed: list[tuple[str, int]] = []  # what the splitter got, if it may get it again
        self._ids, self._begun_calls = Ids(), set[str]()
        self._follows = False  # whether this run follows the grammar of the answer
        self._is_free = True  # whether the answer may begin with thinking
        self._called = False  # the one call that there may be
        self._thought = 0
        self._written = 0  # tokens of what ended the thinking
        self._ended = ""
        self._runs: list[_Run] = []

    def run(self, prompt: Sequence[int], begun: Sequence[int] = ()) -> Generation:
        """The answer to a prompt; begun: tokens that it already has. MedusaError as from Engine.check()."""
        self._prompt = [*prompt, *begun]
        self._so_far = list(self._prompt)
        answered = self._reread(begun, len(prompt))
        reason = self._next_run(self._seed, answered)
        # A mark that is written in the model's place need not be where the answer begins.
        while reason in (CLOSED, BEGINS, ARGUES) or (self._arguments is not None and reason == "eos"):
            if self._cancellation.requested:
                reason = "cancelled"
                break
            if reason == CLOSED:
                self._after_thinking()
            elif reason != ARGUES:
                self._arguments = None
            elif self._head:
                self._write(self._head)
            reason = self._next_run((self._seed + len(self._runs)) % (MAX_SEED + 1))
        if self._call is not None and reason == "eos":
            self._write(self._call.closing)
        rest = Parts() if self._called else self._few(self._splitter.finish())
        if rest != Parts():
            self._tell([Piece.left(rest)])
        found = self.record(reason)
        assert found is not None
        return found

    def _new_splitter(self, at: int) -> Splitter:
        """That of an answer which begins after so many tokens of the prompt."""
        if not self._grammar.marks:
            return Splitter(self._grammar, "", (), self._tools, self._ids)
        end = self._engine.model.detokenize(self._prompt[max(at - PROMPT_END, 0) : at], special=True)
        # Within the thinking, texts that stop an answer do not: so the engine must not look for them.
        return Splitter(self._grammar, end, self._settings.stop, self._tools, self._ids)

    def _reread(self, begun: Sequence[int], at: int) -> int:
        """Takes what there is of an answer, behind the prompt; how many tokens of it are not its thinking."""
        self._splitter, self._at = self._new_splitter(at), at
        answered = 0
        for token in begun:
            answered += self._splitter.answering
            self._feed(self._engine.model.detokenize([token]), token)
        return answered

    def _next_run(self, seed: int, answered: int = 0) -> str:
        """One run of the engine, where there is room for it; why it ended. answered: tokens of the answer there are."""
        most = self._settings.max_tokens
        if self._tokens and most >= 0 and (most := most - len(self._tokens)) <= 0:
            return "length"
        self._follows = self._structure is not None and (self._splitter.answering or not self._is_free)
        if self._follows and self._call is not None:
            self._write(self._call.opening)
        if self._runs and len(self._so_far) >= self._engine.n_ctx:
            return "context_full"
        return self._go(list(self._so_far), most, seed, answered)

    def _go(self, prompt: list[int], most: int, seed: int, answered: int) -> str:
        settings = dataclasses.replace(self._settings, max_tokens=most)
        settings.stop = () if self._grammar.marks else settings.stop
        run = _Run()
        self._runs.append(run)
        self._ended = ""
        told: dict[str, Any] = {"structure": self._structure, "written": answered} if self._follows else {}
        if self._arguments is not None:
            told = {"structure": self._arguments}
        try:
            with self._cancellation.of_run() as of_run:
                run.done = self._engine.generate(
                    prompt, settings, seed, self._take, cancellation=of_run, on_prompt=self._on_prompt, **told
                )
        except BaseException:
            if run.steps:  # else the engine may not have begun: its last answer could be the one before
                run.done = self._engine.last
            raise
        return self._ended or run.done.stop_reason

    def _after_thinking(self) -> None:
        """Writes the end of the thinking, so that the model goes on."""
        assert self._grammar.marks is not None
        ending = self._grammar.marks.ending(tools=bool(self._tools))
        left = self._splitter.end_thinking(ending).thinking
        self._tell([Piece("", None, False, thinking=left, written=tuple(self._add(ending)))])

    def _write(self, text: str) -> None:
        """Adds a text to the answer in the model's place."""
        parts, written = Parts(), self._add(text)
        for token in written:
            parts += self._feed(self._engine.model.detokenize([token]), token)
        self._tell([dataclasses.replace(Piece.left(parts), written=tuple(written))])

    def _add(self, text: str) -> list[int]:
        """The tokens of a text, which the model gets."""
        # Alone, some tokenizers would put a space in front of it.
        known, whole = (self._engine.model.tokenize(one, add_special=False) for one in ("x", f"x{text}"))
        written = whole[len(known) :]
        self._written += len(written)
        self._so_far += written
        return written

    def _take(self, found: Sequence[native.Piece]) -> None:
        """The pieces of one step."""
        run, taken = self._runs[-1], []
        before, was_thinking = len(self._tokens), self._splitter.thinking
        for one in found:
            if self._ended:
                break
            thought = self._splitter.thinking
            parts = self._feed(one.text, one.token)
            if self._begins() and parts.text:
                self._begin_again(one.text, parts.text)
                break
            if self._strict and parts.call_pieces and self._argues(one.text, parts.call_pieces):
                break
            thought = thought or self._splitter.thinking
            taken.append(Piece.of(one, parts, thought))
            if one.token >= 0:
                self._tokens.append(one.token)
                self._so_far.append(one.token)
                self._thought += thought
            if self._splitter.stopped or (self._one_call and parts.calls):
                self._ended = "stop"
            elif self._splitter.thinking and self._thought == self._settings.think:
                self._ended = CLOSED
            elif self._begins():
                self._ended = BEGINS
        run.steps.append((max(len(self._tokens) - before, 0), was_thinking))
        if self._ended:
            self._cancellation.end_run()
        self._tell(taken)

    def _begins(self) -> bool:
        """Whether a grammar holds from here on."""
        return self._structure is not None and not self._follows and self._splitter.answering

    def _begin_again(self, token: str, answer: str) -> None:
        """The answer has begun before the grammar held: what there is of it is left out."""
        self._ended = BEGINS
        if self._thought:
            self._add(token.removesuffix(answer))
            return
        self._is_free = False
        self._splitter, self._so_far, self._tokens = self._new_splitter(len(self._prompt)), list(self._prompt), []

    def _argues(self, token: str, pieces: Sequence[CallPiece]) -> bool:
        """Whether the arguments of a strict tool begin with this token: they do so again, by their grammar."""
        piece = pieces[-1]
        is_new = piece.id not in self._begun_calls
        self._begun_calls.update(one.id for one in pieces)
        grammar = self._strict.get(piece.name)
        if grammar is None or self._arguments is not None or not is_new or not token.endswith(piece.arguments):
            return False
        self._ended, self._arguments = ARGUES, grammar
        fed, self._fed = self._fed[:-1], []
        self._ids.from_the_first()
        self._splitter = self._new_splitter(self._at)
        for text, one in fed:
            self._feed(text, one)
        self._head = token.removesuffix(piece.arguments)
        return True

    def _feed(self, text: str, token: int) -> Parts:
        """What is certain after a further token."""
        if self._strict:
            self._fed.append((text, token))
        return self._few(self._splitter.feed(text, token))

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
