"""Quantizes a base model with libllama's quantizer, in its own process.

In a child process because the quantizer cannot be interrupted and ends the process on some damaged files: Ctrl-C kills
the child, and its failure is one line here.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from medusa_cli.converters.gguf.file_types import file_type
from medusa_cli.support.children import child
from medusa_cli.support.errors import MedusaError


def quantize(
    source: Path,
    target: Path,
    name: str,
    *,
    threads: int = 0,
    allow_requantize: bool = False,
    on_tensor: Callable[[int, int], None] = lambda number, count: None,
) -> None:
    """Writes `target` (a temporary file of the caller's), the base model `source` in file type `name`.

    on_tensor(number, count). MedusaError with libllama's reason when it fails.
    """
    number, _ = file_type(name)
    process = subprocess.Popen(
        child("medusa_cli.conversion.quantize", *map(str, (source, target, number, threads, int(allow_requantize)))),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        with process.stdout, process.stderr:
            for line in process.stdout:
                tensor, _, tensors = line.partition("/")
                if tensors.strip().isdigit():
                    on_tensor(int(tensor), int(tensors))
            message = process.stderr.read().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        process.wait()
    if process.returncode != 0:
        last = message.splitlines()[-1] if message else f"the quantizer stopped with code {process.returncode}"
        raise MedusaError(last.removeprefix("medusa: "))


def main() -> None:
    """The child (source target type threads requantize): progress on stdout, a failure as one line on stderr."""
    from medusa_cli import native

    source, target, number, threads, requantize = sys.argv[1:]
    try:
        native.quantize_model(
            source,
            target,
            file_type=int(number),
            n_threads=int(threads),
            allow_requantize=bool(int(requantize)),
            on_tensor=lambda tensor, tensors: print(f"{tensor}/{tensors}", flush=True),
        )
    except native.NativeError as error:
        print(error, file=sys.stderr)
        sys.exit(1)
