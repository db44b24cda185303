"""Trial runs: a model file that was not seen before is first opened and decoded in a process of its own.

libllama trusts what a file says about itself in more places than anyone has checked, and a bad value ends the process.
So that this is not the process of a chat or a server, three tokens are decoded in another one, without repacking: what
that one reads of the file, the real load then finds in memory. Files that passed are remembered.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from medusa_cli import __version__
from medusa_cli.models.quantizations import parts_of
from medusa_cli.support.children import child
from medusa_cli.support.errors import MedusaError, OptionError, visible
from medusa_cli.support.files import recall, remember
from medusa_cli.support.paths import cache_dir

VARIABLE = "MEDUSA_TRIAL"
"""Environment variable: "off" skips trial runs."""
TOKENS = 3
LIBRARIES = "LD_LIBRARY_PATH"
ENDED = {-getattr(signal, name, 0) for name in ("SIGKILL", "SIGTERM", "SIGINT", "SIGHUP")}
"""Exit codes of a process that was killed, for instance by the system for lack of memory."""
MOST_REMEMBERED = 1000
BEGUN, PASSED, REFUSED = "begun", "passed", "refused"
"""What a trial says on stdout: that it is about to load the file, and how that went."""


def run(path: Path, drafter: Path | None = None, *, remembers: bool = True) -> None:
    """MedusaError when decoding with the model at `path` ends its process. Nothing for files that passed already.

    drafter: the layers in this file, perhaps the same one, draft for it. remembers: the file is not about
    to vanish. Files that are refused with an error pass here: whoever opens them gets
    that error. A trial that cannot start, or is killed, raises nothing, either.
    """
    if os.environ.get(VARIABLE) == "off" or getattr(sys, "frozen", False) or not sys.executable:
        return
    files = [path] if drafter is None else [path, drafter]
    known, name, marks = _remembered(), " + ".join(map(str, files)), [_mark(file) for file in files]
    mark = marks[0] if len(marks) == 1 else marks
    if None in marks or known.get(name) == mark:
        return
    command = child("medusa_cli.decoding.trial", *map(str, files))
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False, env=_environment())
    except OSError:
        return
    said = done.stdout.decode(errors="replace").split()
    if PASSED in said:
        if remembers:
            _remember({**known, name: mark})
    elif BEGUN in said and REFUSED not in said and done.returncode not in ENDED:
        what = "this file" if drafter is None else "the layers in it that draft"
        hint = "use another" if drafter is None else "use {no_drafter}"
        text = "{file}: llama.cpp crashes on {what} ({cause}): damaged or not supported, " + hint
        raise OptionError(text, file=drafter or path, what=what, cause=_cause(done))


def _environment() -> dict[str, str]:
    """The child's, which finds llama_cpp's libraries without importing it: no others of that name may come first."""
    spec = importlib.util.find_spec("llama_cpp")
    ours = Path(spec.origin).parent / "lib" if spec is not None and spec.origin else None
    paths = [str(ours)] * (ours is not None) + [os.environ.get(LIBRARIES, "")]
    return {**os.environ, LIBRARIES: os.pathsep.join(path for path in paths if path)}


def _mark(path: Path) -> list[Any] | None:
    """Changes whenever the file or the engine does; None if the file cannot be read."""
    try:
        states = [path.with_name(name).stat() for name in parts_of(path.name)]
    except OSError:
        return None
    return [__version__, *([at.st_size, at.st_mtime_ns, at.st_ino] for at in states)]


def _record() -> Path:
    return cache_dir() / "trials.json"


def _remembered() -> dict[str, Any]:
    try:
        return recall(_record())
    except MedusaError:
        return {}


def _remember(known: dict[str, Any]) -> None:
    with contextlib.suppress(OSError, MedusaError):  # the next run tries the file again
        remember(_record(), dict(list(known.items())[-MOST_REMEMBERED:]))


def _cause(done: subprocess.CompletedProcess[bytes]) -> str:
    """Why the process of a trial ended, in a few words."""
    if done.returncode < 0:
        return signal.strsignal(-done.returncode) or f"signal {-done.returncode}"
    said = re.search(r"GGML_ASSERT\(.{1,200}\) failed", visible(done.stderr.decode(errors="replace")))
    return said[0] if said else f"exit code {done.returncode}"


def _verdict(path: str, drafter: str | None) -> str:
    # Without the Python part of llama_cpp, which takes longer to import than a small model to load.
    try:
        from medusa_cli import _native as native
    except ImportError:  # its libraries are found only after llama_cpp has loaded them
        from medusa_cli import native  # type: ignore[no-redef]

    print(BEGUN, flush=True)
    try:
        if native.read_gguf(path).embeds:
            model = native.Model(path, n_gpu_layers=0, repack=False, embeds=True)
            native.Embedder(model).embed([[1 % model.n_vocab] * TOKENS])
            return PASSED
        model = native.Model(path, n_gpu_layers=0, repack=False, next_layers=drafter == path)
        drafts: dict[str, Any] = {}
        if drafter is not None:
            layers = model if drafter == path else native.Model(drafter, n_gpu_layers=0, repack=False, next_layers=True)
            drafts = {"drafter": layers, "tree": native.Tree([[0], [0, 0]][: layers.next_layers])}
        session = native.Session(model, None, n_ctx=256, n_threads=0, **drafts)
        session.generate([1 % model.n_vocab], max_tokens=TOKENS, ignore_eos=True)
    except Exception:
        return REFUSED
    return PASSED


def main() -> None:
    """The trial's own process."""
    print(_verdict(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None), flush=True)
    os._exit(0)  # what unloading could do does not matter
