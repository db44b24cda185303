"""An object in a process of its own for each side of a measurement: JSON lines in and out.

A call is one line, its answer the next; {"error": line} can answer any of them. Only one process is asked at a time, so
that they do not share the cores. Each keeps its kernels and its memory to itself, and ends with its input.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from medusa_cli.support.children import child
from medusa_cli.support.errors import MedusaError, describe

if TYPE_CHECKING:
    from typing_extensions import Self

ISA_VARIABLE = "MEDUSA_ISA"
PATIENCE_SECONDS = 5.0
PACKAGE = __name__.partition(".")[0]


class Remote:
    """The parent's side. Arguments and results are JSON types."""

    def __init__(
        self, make: Callable[..., Any], *arguments: Any, name: str | None = None, stock_kernels: bool = False
    ) -> None:
        """make: a class or function of the package, or of a script. name: what errors begin with.

        stock_kernels: with llama.cpp's own.
        """
        folder, module = "", make.__module__
        if module.partition(".")[0] != PACKAGE:
            file = Path(inspect.getfile(make)).resolve()
            folder, module = str(file.parent), file.stem
        made = json.dumps([folder, module, make.__name__, *arguments])
        self._name = name or ("llama.cpp's kernels" if stock_kernels else "our kernels")
        environment = {**os.environ, ISA_VARIABLE: "off"} if stock_kernels else None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            child(__name__, made), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, env=environment
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, *arguments: Any) -> Any:
        """What the object's method returns. MedusaError when it fails, or the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps([method, *arguments]).encode() + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise MedusaError(f"{self._name}: {self._last_words()}")
        answer = json.loads(line)
        if isinstance(answer, dict) and "error" in answer:
            raise MedusaError(f"{self._name}: {answer['error']}")
        return answer

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        said = f" after: {lines[-1].strip()}" if lines else ""
        return f"its process ended with code {code}{said}"

    def close(self) -> None:
        """Ends the process, also in the middle of an answer."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def answer(source: TextIO, sink: TextIO, make: Callable[[], Any]) -> None:
    """Answers lines of `source` on `sink` until the end of `source`. An error answers in place of a result.

    make: called with the first line, which an error can answer, for the object whose methods are called.
    """
    made = functools.cache(make)
    for line in source:
        try:
            method, *arguments = json.loads(line)
            content = getattr(made(), method)(*arguments)
        except Exception as error:  # the process goes on: whoever asked decides what becomes of it
            content = {"error": describe(error)}
        sink.write(json.dumps(content) + "\n")
        sink.flush()


def main() -> None:
    """The child process. Ctrl-C reaches the whole group: only the parent acts on it, by closing our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # libraries print where they like: the protocol gets a stream of its own, and everything else goes to stderr.
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    def make() -> Any:
        folder, module, name, *arguments = json.loads(sys.argv[1])
        if folder:
            sys.path.insert(0, folder)
        return getattr(importlib.import_module(module), name)(*arguments)

    try:
        answer(io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"), sink, make)
    except BrokenPipeError:
        os._exit(1)
