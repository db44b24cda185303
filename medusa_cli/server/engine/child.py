"""The engine's process: messages come on stdin and leave on stdout, and it ends when the server does.

It takes no signals from the terminal or a service manager: those are for the server, which then asks for the end.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Callable
from typing import Any, TypeVar

from medusa_cli.api.embedder import Embedder
from medusa_cli.api.model import Model
from medusa_cli.decoding.runtime import WritesNoText
from medusa_cli.server.engine.host import Host
from medusa_cli.server.engine.messages import Load
from medusa_cli.support.errors import MedusaError, is_reportable

DEATH_SIGNAL = 1
"""PR_SET_PDEATHSIG of Linux's prctl."""
NOT_FOR_US = ("SIGINT", "SIGTERM")
Opened = TypeVar("Opened")


def main() -> None:
    """Run by process.py. Its argument: the file in which libllama's last words go, once the model is loaded."""
    for name in NOT_FOR_US:  # by a handler: what this process starts in turn, such as a trial run, still gets them
        signal.signal(getattr(signal, name), lambda number, frame: None)
    if hasattr(signal, "pthread_sigmask"):  # the server's thread had them blocked until here
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [getattr(signal, name) for name in NOT_FOR_US])
    _end_with_the_server()
    last_words = int(sys.argv[1])
    source, sink = os.fdopen(os.dup(0), "rb"), os.dup(1)
    os.dup2(2, 1)  # whatever else is printed is no message
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")

    def send(line: bytes) -> None:
        view = memoryview(line)
        while view:
            view = view[os.write(sink, view) :]

    def opened(load: Load) -> Model | Embedder:
        if load.quiet:
            _divert(last_words)
        model = _model_of(load)
        _divert(last_words)
        return model

    Host(iter(source.readline, b""), send, opened).run(while_loading=lambda: os._exit(0))
    os._exit(0)  # at once: a template may still be at work on a prompt that nobody waits for


def _end_with_the_server() -> None:
    """On Linux, also where the pipes' end would not be noticed, such as in a long computation."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


def _divert(file: int) -> None:
    """What is written to stderr from here on is for the server alone."""
    if file >= 0:
        os.dup2(file, 2)
        os.dup2(file, 1)


def _model_of(load: Load) -> Model | Embedder:
    """The model, of either kind. MedusaError with options as they are typed on a command line."""
    try:
        return _in_command_names(Model, load.model, quiet=load.quiet, **load.options)
    except WritesNoText:
        if load.refusal:
            raise MedusaError(load.refusal) from None
    return _in_command_names(Embedder, load.model, quiet=load.quiet, **load.embedder)


def _in_command_names(kind: Callable[..., Opened], *arguments: Any, **named: Any) -> Opened:
    try:
        return kind(*arguments, **named)
    except MedusaError as error:
        if error.__cause__ is not None and is_reportable(error.__cause__):
            raise error.__cause__ from None
        raise
