"""Starts the engine's process, carries lines to and from it, and tells why it ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Protocol

from medusa_cli.server.engine.messages import MOST_BYTES
from medusa_cli.support.children import child

PATIENCE = 5.0
"""Seconds to end in, once its pipes are closed."""
MOST_OF_LAST_WORDS = 200


class Child(Protocol):
    """An engine somewhere else."""

    @property
    def pid(self) -> int: ...

    def send(self, line: bytes) -> None:
        """From any thread; does not wait."""

    def lines(self) -> Iterator[bytes]:
        """What it says, until it has ended."""

    def leave(self) -> None:
        """Makes it end, from any thread; what it works on comes to an end first."""

    def end(self) -> str:
        """Waits for its end, and says why: "SIGKILL", "exit code 1"."""

    def kill(self) -> None: ...


class Process:
    """The engine in a process of its own. Started on a thread that lives as long as this process.

    On Linux, the death signal comes with the death of that thread; and signals of the terminal are blocked on it, so
    that there is no moment at which they reach the new process.
    """

    def __init__(self) -> None:
        if hasattr(signal, "pthread_sigmask"):
            signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT, signal.SIGTERM])
        self._last_words: deque[bytes] = deque(maxlen=1)
        self._outgoing: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        reading, writing = self._stderr()
        environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # it would start a debugger before it ends
        environment.pop("MEDUSA_API_KEY", None)
        command = child("medusa_cli.server.engine.child", str(writing))
        files = (writing,) if writing >= 0 else ()
        try:
            self._process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, pass_fds=files
            )
        except OSError:
            if reading >= 0:
                os.close(reading)
            raise
        finally:
            for file in files:
                os.close(file)
        self._threads = [threading.Thread(target=self._write, name="medusa-engine-writer", daemon=True)]
        if reading >= 0:
            listen = threading.Thread(target=self._listen, args=(reading,), name="medusa-engine-stderr", daemon=True)
            self._threads.append(listen)
        for thread in self._threads:
            thread.start()

    @staticmethod
    def _stderr() -> tuple[int, int]:
        """A pipe for what the process writes to stderr once it has loaded; (-1, -1) where everything is to be seen."""
        if sys.platform == "win32" or os.environ.get("MEDUSA_DEBUG") == "1":
            return -1, -1
        return os.pipe()

    @property
    def pid(self) -> int:
        return self._process.pid

    def send(self, line: bytes) -> None:
        self._outgoing.put(line)

    def lines(self) -> Iterator[bytes]:
        """ValueError for a line that is longer than any message."""
        assert self._process.stdout is not None
        while line := self._process.stdout.readline(MOST_BYTES):
            if line[-1:] != b"\n":
                if len(line) == MOST_BYTES:
                    raise ValueError("a line without end")
                return
            yield line

    def leave(self) -> None:
        self._outgoing.put(None)

    def end(self) -> str:
        self._outgoing.put(None)
        try:
            code = self._process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.kill()
            code = self._process.wait()
        for thread in self._threads:
            thread.join(PATIENCE)
        assert self._process.stdout is not None
        self._process.stdout.close()
        reason = f"exit code {code}" if code >= 0 else _name_of(-code)
        words = b"".join(self._last_words).decode("utf-8", "replace").strip()
        return f"{reason}: {words[:MOST_OF_LAST_WORDS]}" if words else reason

    def kill(self) -> None:
        self._process.kill()

    def _write(self) -> None:
        pipe = self._process.stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # it has ended
            while (line := self._outgoing.get()) is not None:
                pipe.write(line)
                pipe.flush()
        with contextlib.suppress(OSError):
            pipe.close()

    def _listen(self, file: int) -> None:
        with os.fdopen(file, "rb") as words:
            while line := words.readline(1 << 16):
                if line.strip():
                    self._last_words.append(line)


def _name_of(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
