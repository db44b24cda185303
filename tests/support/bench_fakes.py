"""A worker without a process: the speed, the text and the acceptance of each method are set."""

from __future__ import annotations

from typing import Any, ClassVar

from medusa_cli.bench.methods import BASELINES, Method
from medusa_cli.bench.protocol import Order, Ready, Spec
from medusa_cli.support.errors import MedusaError

FIGURES = {
    "prompts", "generations", "tokens", "tokens_per_second", "speedup_vs_stock", "speedup_vs_stock_ci95",
    "speedup_vs_stock_total", "speedup_vs_plain", "speedup_vs_plain_ci95", "speedup_vs_plain_total", "steps",
    "plain_steps",
    "tokens_per_step", "acceptance_per_depth", "timings_ms", "overhead", "ttft_ms", "prompt_tokens_per_second",
    "peak_rss_bytes", "tree_nodes", "accept", "stop_reason", "output_match",
}  # fmt: skip
"""Keys of the figures of one method."""
TOKENS = 21
"""Length of every answer: 20 of its tokens come from steps."""


class FakeWorker:
    """speeds: tokens per second by method. fails_after: generations until `failure` is raised. calls: all orders."""

    speeds: ClassVar[dict[str, float]] = {"stock": 50.0, "plain": 100.0, "medusa": 125.0, "llama-lookup": 40.0}
    tokens: ClassVar[dict[str, list[int]]] = {}
    fails_after: ClassVar[int | None] = None
    failure: ClassVar[BaseException] = MedusaError("medusa: its process ended with code -9")
    calls: ClassVar[list[tuple[str, Order]]] = []
    specs: ClassVar[list[Spec]] = []
    open: ClassVar[int] = 0

    def __init__(self, method: Method, spec: Spec) -> None:
        self.method, self._drafts = method, method.name not in BASELINES
        self.ready = Ready("fake 1M F32", 512, "cpu_4" if self._drafts else "", 4 if self._drafts else 1, ("a remark",))
        self.specs.append(spec)
        type(self).open += 1

    def generate(self, order: Order) -> dict[str, Any]:
        if self.fails_after is not None and len(self.calls) >= self.fails_after:
            raise self.failure
        self.calls.append((self.method.name, order))
        return answer(
            speed=self.speeds[self.method.name],
            tokens=self.tokens.get(self.method.name, list(range(TOKENS))),
            per_step=2.0 if self._drafts else 1.0,
            accept="exact" if order.temperature else "greedy",
        )

    def untimed(self, order: Order) -> list[int]:
        return self.tokens.get(self.method.name, list(range(TOKENS)))

    def predict(self, position: int) -> dict[str, float] | None:
        return {"tokens_per_step": 1.5, "plain_ms": 10.0, "verify_ms": 12.0} if self.method.name == "medusa" else None

    def close(self) -> None:
        type(self).open -= 1


def answer(
    *, speed: float, tokens: list[int], per_step: float = 1.0, accept: str = "greedy", stop_reason: str = "length"
) -> dict[str, Any]:
    """What a worker sends: all time but one part in ten goes to verify."""
    decoded = max(0, len(tokens) - 1)
    milliseconds = 1e3 * decoded / speed if speed else 0.0
    timings = dict.fromkeys(("draft", "verify", "accept", "commit", "other"), 0.0)
    timings |= {"verify": 0.9 * milliseconds, "draft": 0.1 * milliseconds}
    return {
        "tokens": tokens,
        "prompt_tokens": 30,
        "stop_reason": stop_reason,
        "tokens_per_step": per_step if decoded else 0.0,
        "acceptance_per_depth": [per_step - 1.0] if per_step > 1 else [],
        "tokens_per_second": speed if decoded else 0.0,
        "prompt_tokens_per_second": 300.0,
        "steps": round(decoded / per_step),
        "timings_ms": timings,
        "ttft_ms": 100.0,
        "peak_rss_bytes": 2_000_000,
        "tree_nodes": 4 if per_step > 1 else 1,
        "accept": accept,
    }
