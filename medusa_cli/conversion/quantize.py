"""Quantizes a base model with libllama's quantizer, in a process of its own.

A child process because the quantizer cannot be interrupted and ends the process on some damaged files: Ctrl-C kills the
child, and its failure is one line here.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from medusa_cli.converters.gguf.file_types import file_type
from medusa_cli.support.errors import MedusaError

# Not `-m`: it looks in the current folder first, and in a checkout of this project the package has no compiled module.
CHILD = (
    "import sys; sys.path = [entry for entry in sys.path if entry]; "
    "from medusa_cli.conversion.quantize import main; sys.exit(main(sys.argv[1:]))"
)


def quantize(
    source: Path,
    target: Path,
    name: str,
    *,
    threads: int = 0,
    allow_requantize: bool = False,
    on_tensor: Callable[[int, int], None] | None = None,
) -> None:
    """Writes `target` (a temporary file of the caller's), the base model `source` in file type `name`.

    on_tensor(number, count). MedusaError with libllama's reason when it fails.
    """
    number, _ = file_type(name)
    child = subprocess.Popen(
        [sys.executable, "-c", CHILD, *map(str, (source, target, number, threads, int(allow_requantize)))],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        encoding="utf-8",
        errors="replace",
    )
    assert child.stdout is not None
    assert child.stderr is not None
    try:
        with child.stdout, child.stderr:
            for line in child.stdout:
                tensor, _, tensors = line.partition("/")
                if on_tensor is not None and tensors.strip().isdigit():
                    on_tensor(int(tensor), int(tensors))
            message = child.stderr.read().strip()
    finally:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        child.wait()
    if child.returncode != 0:
        last = message.splitlines()[-1] if message else f"the quantizer stopped with code {child.returncode}"
        raise MedusaError(last.removeprefix("medusa: "))


def main(arguments: list[str]) -> int:
    """The child (source target type threads requantize): progress on stdout, a failure as one line on stderr."""
    from medusa_cli import native

    source, target, number, threads, requantize = arguments
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
        return 1
    return 0
