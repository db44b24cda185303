"""An object in its own process for each side of a measurement: pickled calls in, pickled answers out.

A MedusaError can answer any call. Only one process is called at a time, so that they do not share the cores. Each
keeps its kernels and its memory to itself, and ends when its input does.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

from medusa_cli.support.children import child
from medusa_cli.support.errors import MedusaError, describe

ISA_VARIABLE = "MEDUSA_ISA"
PATIENCE_SECONDS = 5.0
PACKAGE = __name__.partition(".")[0]


class Remote(contextlib.AbstractContextManager["Remote"]):
    """The parent's side. Arguments and results are pickled."""

    def __init__(
        self, make: Callable[..., Any], *arguments: Any, name: str | None = None, stock_kernels: bool = False
    ) -> None:
        """make: a class or function of the package, or of a script. name: what errors begin with.

        stock_kernels: runs on llama.cpp's own.
        """
        folder, module = "", make.__module__
        if module.partition(".")[0] != PACKAGE:
            file = Path(inspect.getfile(make)).resolve()
            folder, module = str(file.parent), file.stem
        self._name = name or ("llama.cpp's kernels" if stock_kernels else "our kernels")
        environment = {**os.environ, ISA_VARIABLE: "off"} if stock_kernels else None
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - close() closes it
        self._process = subprocess.Popen(
            child(__name__, folder, module, make.__name__),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=environment,
        )
        self._send(arguments)

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, method: str, *arguments: Any) -> Any:
        """Returns what the object's method returns. MedusaError if that fails, or the process has ended."""
        self._send((method, arguments))
        assert self._process.stdout is not None
        try:
            answer = pickle.load(self._process.stdout)
        except (EOFError, pickle.UnpicklingError):
            raise MedusaError(f"{self._name}: {self._last_words()}") from None
        if isinstance(answer, MedusaError):
            raise MedusaError(f"{self._name}: {answer}")
        return answer

    def _send(self, content: Any) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # call() then gets no answer, and says why
            pickle.dump(content, self._process.stdin)
            self._process.stdin.flush()

    def _last_words(self) -> str:
        code = self._process.wait()
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        said = f" after: {lines[-1].strip()}" if lines else ""
        return f"its process ended with code {code}{said}"

    def close(self) -> None:
        """Ends the process, even in the middle of an answer."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(PATIENCE_SECONDS)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


def answer(source: BinaryIO, sink: BinaryIO, make: Callable[[], Any]) -> None:
    """Answers calls from `source` on `sink` until `source` ends. An error is sent in place of a result.

    make: makes the object whose methods are called, at the first call, so that an error in it can be the answer.
    """
    made = functools.cache(make)
    while True:
        try:
            method, arguments = pickle.load(source)
        except EOFError:
            return
        try:
            content = getattr(made(), method)(*arguments)
        except Exception as error:  # the process continues: the caller decides what becomes of it
            content = MedusaError(describe(error))
        pickle.dump(content, sink)
        sink.flush()


def main() -> None:
    """The child process. Ctrl-C reaches the whole group: only the parent acts on it, by closing our input."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Libraries print where they like: the protocol gets its own stream, and everything else goes to stderr.
    sink = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())

    folder, module, name = sys.argv[1:]
    if folder:
        sys.path.insert(0, folder)
    arguments = pickle.load(sys.stdin.buffer)
    try:
        answer(sys.stdin.buffer, sink, lambda: getattr(importlib.import_module(module), name)(*arguments))
    except BrokenPipeError:
        os._exit(1)
