"""A worker process: holds one model and decodes one prompt at a time, as it is told (medusa_cli.bench.process).

The first line in is a Spec, answered by a Ready; each further line is an Order, answered by an Outcome, or
{"position": p}, answered by a prediction or null (medusa_cli.bench.predict).
"""

from __future__ import annotations

import dataclasses
import io
from typing import Any, Protocol, TextIO

from rich.console import Console

from medusa_cli.bench import lookahead, process
from medusa_cli.bench.methods import LLAMA_CPP
from medusa_cli.bench.protocol import Order, Ready, Spec


class Driver(Protocol):
    """What decodes in a worker. generate() answers with the fields of an Outcome."""

    ready: Ready

    def generate(self, order: Order) -> dict[str, Any]: ...

    def predict(self, position: int) -> dict[str, float] | None: ...


class EngineDriver:
    """Our engine: the whole token loop is native."""

    def __init__(self, spec: Spec) -> None:
        from medusa_cli.decoding.runtime import open_engine

        remarks = io.StringIO()
        self._engine = open_engine(spec.model, spec.engine, spec.draft, Console(file=remarks, width=10_000))
        if spec.lookahead is not None:
            lookahead.replace_session(self._engine, spec.lookahead)
        self._draft, self._threads = spec.draft, spec.engine.threads
        self.ready = Ready(
            self._engine.model.description,
            self._engine.n_ctx,
            self._engine.plan.tree_name,
            self._engine.tree_nodes,
            tuple(line.strip() for line in remarks.getvalue().splitlines() if line.strip()),
        )

    def generate(self, order: Order) -> dict[str, Any]:
        from medusa_cli.decoding.settings import Settings, given

        draft = self._draft
        settings = Settings(
            temperature=order.temperature,
            max_tokens=order.max_tokens,
            accept=draft.accept.value if draft.accept else None,
            greedy_root=draft.greedy_root,
            as_published=draft.as_published,
            synthetic_rate=order.synth_accept,
            ignore_eos=order.synth_accept is not None,
            **given(epsilon=draft.epsilon, delta=draft.delta),
        )
        tokens = self._engine.chat_tokens([{"role": "user", "content": order.prompt}])
        self._engine.session.reset()
        done = self._engine.generate(tokens, settings, order.seed, on_step=None)
        return {
            "tokens": list(done.tokens),
            "prompt_tokens": done.prompt_tokens,
            "stop_reason": done.stop_reason,
            **done.stats,
        }

    def predict(self, position: int) -> dict[str, float] | None:
        from medusa_cli.bench.predict import predict

        return predict(self._engine, self._threads, position)


def open_driver(spec: Spec) -> Driver:
    """Loads what the spec names."""
    if spec.driver == LLAMA_CPP:
        from medusa_cli.bench.llama_cpp_driver import LlamaCppDriver

        return LlamaCppDriver(spec)
    return EngineDriver(spec)


class Decoding:
    """What a worker answers to each line: the first one loads."""

    def __init__(self) -> None:
        self._driver: Driver | None = None

    def __call__(self, asked: dict[str, Any]) -> Any:
        if self._driver is None:
            self._driver = open_driver(Spec.from_json(asked))
            return dataclasses.asdict(self._driver.ready)
        if "position" in asked:
            return self._driver.predict(asked["position"])
        return self._driver.generate(Order(**asked))


def serve(source: TextIO, sink: TextIO) -> None:
    """Answers lines of `source` on `sink` until the end of `source`."""
    process.answer(source, sink, Decoding())


def main() -> None:
    """The child process."""
    process.serve(Decoding)
