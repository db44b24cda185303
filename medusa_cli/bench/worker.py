"""A worker process: holds one model, decodes one prompt at a time as it is told, JSON lines in and out.

The first line in is a Spec, answered by a Ready; each further line is an Order, answered by an Outcome, or
{"position": p}, answered by a prediction or null (medusa_cli.bench.predict). {"error": line} can be the answer to all.
The process ends with its standard input. One process for each method keeps their kernels and memory apart.
"""

from __future__ import annotations

import dataclasses
import io
import json
import os
import signal
import sys
from typing import Any, Protocol, TextIO

from rich.console import Console

from medusa_cli.bench.methods import LLAMA_CPP
from medusa_cli.bench.protocol import Order, Ready, Spec
from medusa_cli.support.errors import describe


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


def serve(source: TextIO, sink: TextIO) -> None:
    """Answers lines of `source` on `sink` until the end of `source`. An error answers in place of a result."""

    def answer(content: Any) -> None:
        sink.write(json.dumps(content) + "\n")
        sink.flush()

    driver: Driver | None = None
    for line in source:
        try:
            asked = json.loads(line)
            if driver is None:
                driver = open_driver(Spec.from_json(asked))
                answer(dataclasses.asdict(driver.ready))
            elif "position" in asked:
                answer(driver.predict(asked["position"]))
            else:
                answer(driver.generate(Order(**asked)))
        except Exception as error:  # the process goes on: whoever asked decides what becomes of it
            answer({"error": describe(error)})


def main() -> None:
    """The child process. Ctrl-C reaches the whole group: only the parent acts on it, by closing our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # libraries print where they like: the protocol gets a stream of its own, and everything else goes to stderr.
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    try:
        serve(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"), sink)
    except BrokenPipeError:
        os._exit(1)
