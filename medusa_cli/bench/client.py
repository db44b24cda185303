"""The parent's side of a worker process that decodes."""

from __future__ import annotations

import dataclasses
from typing import Any

from medusa_cli.bench.methods import Method
from medusa_cli.bench.process import Process
from medusa_cli.bench.protocol import Order, Ready, Spec
from medusa_cli.support.children import child


class Worker(Process):
    """A process that decodes by one method."""

    def __init__(self, method: Method, spec: Spec, command: tuple[str, ...] = child("medusa_cli.bench.worker")) -> None:
        """Starts the process and waits until the model is loaded. MedusaError when that fails."""
        super().__init__(method.name, command, method.stock_kernels)
        self.method = method
        try:
            found = self.ask(spec.to_json())
            self.ready = Ready(**{**found, "notes": tuple(found["notes"])})
        except BaseException:
            self.close()
            raise

    def generate(self, order: Order) -> dict[str, Any]:
        """The worker's outcome of one prompt."""
        found: dict[str, Any] = self.ask(dataclasses.asdict(order))
        return found

    def untimed(self, order: Order) -> list[int]:
        """The tokens of an answer that does not count."""
        tokens: list[int] = self.generate(order)["tokens"]
        return tokens

    def predict(self, position: int) -> dict[str, float] | None:
        """What the cost of a step at `position` and the heads' accuracies promise (medusa_cli.bench.predict)."""
        found: dict[str, float] | None = self.ask({"position": position})
        return found
