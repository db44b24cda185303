"""The parent's side of a worker process."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import subprocess
import sys
import tempfile
from typing import Any

from medusa_cli.bench.methods import Method
from medusa_cli.bench.protocol import Order, Ready, Spec
from medusa_cli.support.errors import MedusaError

# Not `-m`, which looks for the package in the current folder first: a checkout of this project has no compiled module.
ISA_VARIABLE = "MEDUSA_ISA"
PATIENCE_SECONDS = 5.0


def child(module: str, *arguments: str) -> tuple[str, ...]:
    """A command that runs main() of a module of the installed package, whatever lies in the current folder."""
    code = f"import sys; sys.path = [entry for entry in sys.path if entry]; from {module} import main; main()"
    return (sys.executable, "-c", code, *arguments)


class Worker:
    """A process that decodes by one method. Only one worker is asked at a time, so that they do not share the cores."""

    def __init__(self, method: Method, spec: Spec, command: tuple[str, ...] = child("medusa_cli.bench.worker")) -> None:
        """Starts the process and waits until the model is loaded. MedusaError when that fails."""
        self.method = method
        environment = {**os.environ, ISA_VARIABLE: "off"} if method.stock_kernels else dict(os.environ)
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment
        )
        try:
            found = self._ask(spec.to_json())
            self.ready = Ready(**{**found, "notes": tuple(found["notes"])})
        except BaseException:
            self.close()
            raise

    def generate(self, order: Order) -> dict[str, Any]:
        """The worker's outcome of one prompt."""
        found: dict[str, Any] = self._ask(dataclasses.asdict(order))
        return found

    def untimed(self, order: Order) -> list[int]:
        """The tokens of an answer that does not count."""
        tokens: list[int] = self.generate(order)["tokens"]
        return tokens

    def predict(self, position: int) -> dict[str, float] | None:
        """What the cost of a step at `position` and the heads' accuracies promise (medusa_cli.bench.predict)."""
        found: dict[str, float] | None = self._ask({"position": position})
        return found

    def _ask(self, content: dict[str, Any]) -> Any:
        """One line there, one line back. MedusaError for an error in between, named after the method."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(content).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise MedusaError(f"{self.method.name}: {self._last_words()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise MedusaError(f"{self.method.name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        said = f" after: {lines[-1].strip()}" if lines else ""
        return f"its process ended with code {code}{said}"

    def close(self) -> None:
        """Ends the process, also in the middle of a generation."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.kill()
        self._process.wait(PATIENCE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()
