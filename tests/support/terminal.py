"""A command in a pseudo terminal, as a person has it."""

from __future__ import annotations

import codecs
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from pathlib import Path
from types import TracebackType

import pytest

TIMEOUT = 120.0


class Terminal:
    """Type, wait for what must appear, and read the screen without escape sequences. columns: 0, it does not say."""

    def __init__(self, command: list[str], tmp_path: Path, columns: int = 0, **environment: str) -> None:
        self._fd, terminal = pty.openpty()
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("4H", 24 if columns else 0, columns, 0, 0))
        self.raw = ""
        self._decoded = codecs.getincrementaldecoder("utf-8")("replace").decode
        self._at = 0
        unset = ("NO_COLOR", "MEDUSA_DEBUG", "COLUMNS", "LINES")  # pytest-xdist sets COLUMNS
        inherited = {key: value for key, value in os.environ.items() if key not in unset}
        self._process = subprocess.Popen(
            command,
            cwd=Path(__file__).parent,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            # The terminal must be the process's own for Ctrl-C to become a signal.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            env={**inherited, "TERM": "xterm-256color", "XDG_STATE_HOME": str(tmp_path / "state"), **environment},
        )
        os.close(terminal)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._fd)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def _read(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._fd], [], [], max(0.0, deadline - time.monotonic()))
        try:
            data = os.read(self._fd, 65536) if ready else b""
        except OSError:  # Linux: the other side is closed
            data = b""
        if b"\x1b[6n" in data:  # prompt_toolkit asks where the cursor is
            self.type("\x1b[1;1R")
        self.raw += self._decoded(data)
        return bool(data)

    @property
    def shown(self) -> str:
        """Everything written so far without escape sequences."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>78]|\r", "", self.raw)

    def wait_for(self, text: str) -> None:
        """Waits until `text` is written after what the last call found."""
        deadline = time.monotonic() + TIMEOUT
        while text not in self.shown[self._at :]:
            if not self._read(deadline):
                pytest.fail(f"no {text!r} in {self.shown[self._at :]!r}")
        self._at = self.shown.index(text, self._at) + len(text)

    def exit_code(self) -> int:
        deadline = time.monotonic() + TIMEOUT
        while self._read(deadline):
            pass
        return self._process.wait(timeout=TIMEOUT)
