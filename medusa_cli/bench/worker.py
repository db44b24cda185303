"""A worker: holds one model in its own process and decodes one prompt at a time, as ordered."""

from __future__ import annotations

import io
import statistics
from typing import TYPE_CHECKING, Any

from rich.console import Console

from medusa_cli.bench.methods import LLAMA_CPP, Method, parse_lookahead
from medusa_cli.bench.process import Remote
from medusa_cli.bench.protocol import Order, Ready, Spec, answered
from medusa_cli.decoding import pass_cost, runtime, trees
from medusa_cli.decoding.drafting import FixedTree

if TYPE_CHECKING:
    from medusa_cli import native
    from medusa_cli.bench.llama_cpp_driver import LlamaCppDriver
    from medusa_cli.decoding.options import EngineOptions

ROUNDS = 5
"""Rounds of passes for a prediction."""


class Worker(Remote):
    """A process that decodes by one method."""

    def __init__(self, method: Method, spec: Spec) -> None:
        """Starts the process and waits until the model is loaded. MedusaError when that fails."""
        super().__init__(open_driver, spec, name=method.name, stock_kernels=method.stock_kernels)
        self.method = method
        try:
            self.ready: Ready = self.call("loaded")
        except BaseException:
            self.close()
            raise

    def generate(self, order: Order) -> dict[str, Any]:
        """All fields of one prompt's Outcome but the first five."""
        return self.call("generate", order)

    def untimed(self, order: Order) -> list[int]:
        """The tokens of an answer that does not count."""
        return self.generate(order)["tokens"]

    def predict(self, position: int) -> dict[str, float] | None:
        """What the cost of a step at `position` and the heads' accuracies promise."""
        return self.call("predict", position)


class EngineDriver:
    """Our engine: the whole token loop is native."""

    def __init__(self, spec: Spec) -> None:
        remarks = io.StringIO()
        # A small context, the same size for all methods, whatever memory the others have taken.
        out = Console(file=remarks, width=10_000)
        self._engine = runtime.open_engine(spec.model, spec.engine, spec.draft, out, most_cache=0)
        if spec.lookahead is not None:
            del self._engine.session  # frees its memory before the next one takes its own
            self._engine.session = lookahead_session(self._engine.model, spec.lookahead, self._engine.options)
        self._draft, self._threads = spec.draft, spec.engine.threads
        self._notes = [line.strip() for line in remarks.getvalue().splitlines() if line.strip()]

    def loaded(self) -> Ready:
        """What was loaded."""
        engine = self._engine
        return Ready(engine.model.description, engine.n_ctx, engine.plan.tree_name, engine.tree_nodes, self._notes)

    def generate(self, order: Order) -> dict[str, Any]:
        """See Worker.generate()."""
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
        return answered(self._engine.generate(tokens, settings, order.seed, on_step=None))

    def predict(self, position: int) -> dict[str, float] | None:
        """What a step with `position` tokens in the cache promises before any text is decoded.

        None without stored accuracies, if lookup drafts, too, or with a dynamic tree.

        tokens_per_step: 1 + the chance of each node, by the accuracies stored with the heads. plain_ms, verify_ms:
        forward passes over one token and over the tree, medians of rounds that hold both.
        """
        engine, session = self._engine, self._engine.session
        if engine.heads is None or engine.plan.lookup or not isinstance(engine.plan.tree, FixedTree):
            return None
        expected = trees.expected_tokens(session.tree.choices, engine.heads.accuracy)
        if expected is None:
            return None
        size = session.tree.size
        timer = pass_cost.make_timer(engine.model, size, position, self._threads, session.n_ctx)
        rounds = [(pass_cost.pass_ms(timer, 1), pass_cost.pass_ms(timer, size)) for _ in range(ROUNDS)]
        plain_ms, verify_ms = (statistics.median(column) for column in zip(*rounds, strict=True))
        return {"tokens_per_step": expected, "plain_ms": plain_ms, "verify_ms": verify_ms}


def lookahead_session(model: native.Model, numbers: str, options: EngineOptions) -> native.Session:
    """A session without heads. MedusaError or NativeError for numbers, or a model, that do not work."""
    from medusa_cli import native

    return runtime.open_session(model, None, None, options, lookahead=native.Lookahead(*parse_lookahead(numbers)))


def open_driver(spec: Spec) -> EngineDriver | LlamaCppDriver:
    """Runs in the worker's process: loads what is asked for."""
    if spec.driver == LLAMA_CPP:
        from medusa_cli.bench.llama_cpp_driver import LlamaCppDriver

        return LlamaCppDriver(spec)
    return EngineDriver(spec)
