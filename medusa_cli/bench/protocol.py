"""What a bench and its worker processes say to each other."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from medusa_cli.decoding.options import DraftOptions, EngineOptions

if TYPE_CHECKING:
    from medusa_cli import native

END = -1
"""Stands for any end-of-generation token when texts are compared."""


@dataclass(frozen=True)
class Spec:
    """What a worker loads. lookahead: the numbers of lookahead decoding, if that drafts."""

    driver: str
    model: str
    engine: EngineOptions
    draft: DraftOptions
    lookahead: str | None = None


@dataclass(frozen=True)
class Order:
    """One prompt (a user turn), and how to answer it.

    synth_accept: drafts are accepted with this probability, whatever the model says.
    """

    prompt: str
    max_tokens: int
    temperature: float
    seed: int
    synth_accept: float | None = None


@dataclass(frozen=True)
class Ready:
    """What was loaded. notes: remarks for the person. tree_nodes: 1 if no heads draft."""

    description: str
    n_ctx: int
    tree: str = ""
    tree_nodes: int = 1
    notes: Sequence[str] = ()


def answered(done: native.Generation) -> dict[str, Any]:
    """What our engine says about a generation: all fields of an Outcome but the first five, and more."""
    return {
        "tokens": list(done.tokens),
        "prompt_tokens": done.prompt_tokens,
        "stop_reason": done.stop_reason,
        **done.stats,
    }


@dataclass(frozen=True)
class Outcome:
    """One generation: the keys of docs/design.md, Reporting, and its place in the run.

    The speed does not include the prompt.
    """

    method: str
    prompt_id: str
    category: str
    temperature: float
    repeat: int
    tokens: tuple[int, ...]
    prompt_tokens: int
    stop_reason: str
    tokens_per_second: float
    prompt_tokens_per_second: float
    ttft_ms: float
    steps: int
    tokens_per_step: float
    acceptance_per_depth: tuple[float, ...]
    timings_ms: dict[str, float]
    tree_nodes: int
    accept: str
    peak_rss_bytes: int
    plain_steps: int = 0
    """Steps without drafts although the method drafts: the watchdog saw that drafts do not pay."""

    @classmethod
    def from_worker(cls, answer: dict[str, Any], **place: Any) -> Outcome:
        """answer: what a worker sent; place: the first five fields."""
        names = {field.name for field in dataclasses.fields(cls)}
        known = {key: value for key, value in answer.items() if key in names}
        known["tokens"] = tuple(known["tokens"])
        known["acceptance_per_depth"] = tuple(known["acceptance_per_depth"])
        return cls(**place, **known)

    @property
    def round(self) -> tuple[str, float, int]:
        """The same for generations done side by side: prompt, temperature, repeat."""
        return self.prompt_id, self.temperature, self.repeat

    @property
    def decode_ms(self) -> float:
        """Time of all steps, without the prompt."""
        return sum(self.timings_ms.values())

    @property
    def decoded(self) -> int:
        """Tokens that the steps brought: the first token is the prompt's."""
        return max(0, len(self.tokens) - 1)

    @property
    def step_ms(self) -> float:
        """Mean time of a step; 0 without steps."""
        return self.decode_ms / self.steps if self.steps else 0.0

    @property
    def speed(self) -> float:
        """Tokens of the steps per second."""
        return 1e3 * self.decoded / self.decode_ms

    @property
    def committed(self) -> float:
        """Tokens that the steps brought, before the text was clipped."""
        return self.tokens_per_step * (self.steps - self.plain_steps) + self.plain_steps

    @property
    def whole_speed(self) -> float:
        """Tokens per second, the time for the prompt included."""
        return 1e3 * len(self.tokens) / (self.ttft_ms + self.decode_ms)

    @property
    def ended(self) -> tuple[int, ...]:
        """The tokens, with END after them if the model ended the text itself."""
        return (*self.tokens, END) if self.stop_reason == "eos" else self.tokens
