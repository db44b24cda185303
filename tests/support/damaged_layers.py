"""Files of layers for further tokens (MTP) with damaged headers, opened in every way there is.

In a process of its own, like tests/support/damaged_headers.py. libllama may end it where a trial run finds that out.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from damaged_headers import SECONDS_PER_FILE, Damage, complaint, is_found_by_trial, limit_memory

PROMPT = list(range(3, 60, 2))
NAME = "mtp-damaged.gguf"


class Silence(Exception):
    """The layers drafted nothing, and nobody said why."""


def opened(path: Path, model: Path | None) -> Iterator[tuple[str, Callable[[], object]]]:
    """The ways to open the file at `path`, which drafts for `model`, or for itself."""
    from medusa_cli import native
    from medusa_cli.commands.inspect import inspect
    from medusa_cli.diagnosis import inspection
    from medusa_cli.models import drafters, gguf_files

    def load() -> object:
        target = native.Model(str(model or path), n_gpu_layers=0, next_layers=model is None)
        layers = target if model is None else native.Model(str(path), n_gpu_layers=0, next_layers=True)
        tree = native.Tree([[0], [0, 0]][: layers.next_layers])
        session = native.Session(target, drafter=layers, tree=tree, n_ctx=256, n_threads=1)
        try:
            prompt = [token % target.n_vocab for token in PROMPT]
            answer = session.generate(prompt, max_tokens=8, ignore_eos=True)
        except native.NativeError as error:
            if not str(error).isprintable():
                raise
            return None  # of numbers, not of the file
        if not answer.stats["drafts_ended"] and not any(len(one) > 1 for one in answer.drafts):
            raise Silence
        return answer.tokens

    yield "read", lambda: drafters.read(path)
    yield "asked_for", lambda: drafters.asked_for(path)
    yield "for_model", lambda: drafters.for_model(model or path)
    yield "inspect", lambda: inspection.inspect_file(gguf_files.read_header(path))
    yield "inspect --json", lambda: inspect(str(path), True)
    yield "load", load


def work(source: Path, model: Path | None, folder: Path, numbers: range) -> None:
    """Opens the damaged copies; stdout: each number before its turn, and a JSON object for each complaint."""
    import contextlib
    import io

    from medusa_cli import native

    native.Model(str(model or source), n_gpu_layers=0)
    limit_memory()
    damage, target = Damage(source.read_bytes()), folder / NAME
    for number in numbers:
        print(number, flush=True)
        target.write_bytes(damage.copy(number))
        if hasattr(signal, "alarm"):
            signal.alarm(SECONDS_PER_FILE)
        for name, use in opened(target, model):
            with contextlib.redirect_stdout(io.StringIO()):
                found = complaint(target, use)
            if found:
                print(json.dumps({"number": number, "use": name, "found": found}), flush=True)


def run(source: Path, model: Path | None, folder: Path, total: int) -> list[str]:
    """Opens `total` damaged copies of `source`, which drafts for `model` (None: itself); returns what went wrong."""
    complaints: list[str] = []
    begin = 0
    while begin < total:
        command: list[Any] = [sys.executable, __file__, source, model or "", folder, str(begin), str(total)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        lines = done.stdout.splitlines()
        complaints += [line for line in lines if line.startswith("{")]
        last = max((int(line) for line in lines if line.isdigit()), default=None)
        finished = (done.returncode, done.stderr, last) == (0, "", total - 1)
        if last is None or not (finished or is_found_by_trial(model or folder / NAME, folder / NAME)):
            complaints.append(f"number {last}: code {done.returncode}, stderr {done.stderr[-2000:]!r}")
        begin = total if last is None else last + 1
    return complaints


if __name__ == "__main__":
    _, of, for_, into, first, end = sys.argv
    work(Path(of), Path(for_) if for_ else None, Path(into), range(int(first), int(end)))
