"""Counters for Prometheus."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4 as CONTENT_TYPE

from medusa_cli.api.answer import Answer
from medusa_cli.server.answer_queue import AnswerQueue
from medusa_cli.server.engine.remote import Engine
from medusa_cli.server.engine_queue import EngineQueue

disable_created_metrics()  # a creation time for each counter says nothing here

__all__ = ["CONTENT_TYPE", "Metrics", "ServerMetrics"]

SECONDS = (0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300)
SPEEDS = (1, 3, 10, 20, 30, 50, 100, 200, 300, 500, 1000)
TOKENS_PER_STEP = (1, 1.25, 1.5, 1.75, 2, 2.5, 3, 4, 6, 8)


class ServerMetrics:
    """What all servers count. Gauges look up their values when read."""

    def __init__(self, queue: EngineQueue[Any, Any], engine: Engine) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        ProcessCollector("medusa_engine", lambda: engine.pid, registry=self.registry)
        restarts = Counter("medusa_engine_restarts", "Times that the engine was started again.", registry=self.registry)
        engine.on_restart = restarts.inc
        self._gauge("medusa_requests_waiting", "Requests in the queue.", lambda: queue.waiting)
        self._gauge("medusa_requests_running", "Requests being answered: 0 or 1.", lambda: queue.running is not None)
        self.responses = Counter("medusa_http_responses", "Responses by status.", ["status"], registry=self.registry)
        self.prompt_tokens = Counter("medusa_prompt_tokens", "Tokens of prompts.", registry=self.registry)

    def _gauge(self, name: str, meaning: str, value: Callable[[], int]) -> None:
        Gauge(name, meaning, registry=self.registry).set_function(value)

    def text(self) -> bytes:
        """What Prometheus reads, in CONTENT_TYPE's format."""
        return generate_latest(self.registry)


class Metrics(ServerMetrics):
    """The metrics of a server that answers."""

    def __init__(self, queue: AnswerQueue, engine: Engine) -> None:
        super().__init__(queue, engine)
        self._gauge("medusa_sessions", "Conversations whose prompt cache is kept.", lambda: engine.sessions)
        self.answers = Counter("medusa_answers", "Answers by stop reason.", ["stop_reason"], registry=self.registry)
        self.cached_tokens = Counter(
            "medusa_cached_prompt_tokens", "Prompt tokens found in a prompt cache.", registry=self.registry
        )
        self.tokens = Counter("medusa_generated_tokens", "Tokens of answers.", registry=self.registry)
        self.steps = Counter("medusa_steps", "Forward passes that generated them.", registry=self.registry)
        self.first_token = Histogram(
            "medusa_first_token_seconds", "Time to the first token, without the queue.",
            buckets=SECONDS, registry=self.registry,
        )  # fmt: skip
        self.speed = Histogram(
            "medusa_tokens_per_second", "Speed of each answer.", buckets=SPEEDS, registry=self.registry
        )
        self.per_step = Histogram(
            "medusa_tokens_per_step", "Tokens per step of each answer.",
            buckets=TOKENS_PER_STEP, registry=self.registry,
        )  # fmt: skip

    def count(self, answer: Answer) -> None:
        """Counts an answer that has ended."""
        stats = answer.stats
        self.answers.labels(answer.stop_reason).inc()
        self.prompt_tokens.inc(answer.prompt_tokens)
        self.cached_tokens.inc(answer.cached_tokens)
        self.tokens.inc(len(answer.tokens))
        self.steps.inc(stats.get("steps") or 0)
        self.first_token.observe((stats.get("ttft_ms") or 0) / 1000)
        for histogram, key in ((self.speed, "tokens_per_second"), (self.per_step, "tokens_per_step")):
            if value := stats.get(key):
                histogram.observe(value)
