"""`medusa serve` in a process of its own."""

from __future__ import annotations

import contextlib
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

SECONDS = 120.0


@dataclass
class Served:
    process: subprocess.Popen[str]
    url: str
    port: int

    def end(self, how: signal.Signals = signal.SIGINT) -> tuple[int, str]:
        """Exit code, and what was written to stderr after the first line."""
        self.process.send_signal(how)
        _, errors = self.process.communicate(timeout=SECONDS)
        return self.process.returncode, errors


@contextlib.contextmanager
def served(model: str, *options: str, port: int = 0) -> Iterator[Served]:
    """A server that takes requests. options: further ones of the command."""
    process = subprocess.Popen(
        [sys.executable, "-m", "medusa_cli", "serve", model, "--port", str(port), *options],
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        cwd=Path(__file__).parent,  # not the source folder, which has no compiled module
    )
    try:
        assert process.stderr is not None
        said = ""
        while (found := re.search(r"at (http://\S+:(\d+)):", said)) is None:
            line = process.stderr.readline()
            assert line, f"the server ended: {said}"
            said += line
        yield Served(process, found[1], int(found[2]))
    finally:
        process.kill()
        process.wait()
        if process.stderr is not None:
            process.stderr.close()
