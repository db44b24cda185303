"""Commands in folders of their own, killed in the middle of a write, out of disk space from one on (faults.c), or with
too little memory."""

from __future__ import annotations

import hashlib
import os
import resource
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).with_name("faults.c")
HOMES = ("XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME", "HF_HOME", "TMPDIR")
SECONDS = 180


@dataclass(frozen=True)
class Scenario:
    """A command of `medusa`. outputs: patterns of what its user reads: whole or not there, whenever it ends.

    typed: on stdin. random: it writes other bytes each time. varies: patterns of files with other names each time.
    """

    arguments: Sequence[str]
    outputs: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)
    typed: str = ""
    random: bool = False
    varies: Sequence[str] = ()


@dataclass(frozen=True)
class Run:
    """code: negative for a signal."""

    code: int
    said: str


class Place:
    """A folder in which the command runs, with all caches and settings below it."""

    def __init__(self, scenario: Scenario, folder: Path) -> None:
        self.scenario, self.folder = scenario, folder
        for name in HOMES:
            (folder / name.lower()).mkdir(parents=True)

    def run(self, *more: str, memory: int | None = None, **environment: object) -> Run:
        return self.end(self.start(*more, memory=memory, **environment))

    def start(self, *more: str, memory: int | None = None, **environment: object) -> subprocess.Popen[str]:
        """Starts it; end() has to follow. memory: of the address space that it may use, in bytes."""
        homes = {name: str(self.folder / name.lower()) for name in HOMES}
        usual = {**os.environ, "NO_COLOR": "1", "COLUMNS": "500", **homes, **self.scenario.environment}
        return subprocess.Popen(
            [sys.executable, "-m", "medusa_cli", *self.scenario.arguments, *more],
            cwd=self.folder,
            env=usual | {name: str(value) for name, value in environment.items()},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=None if memory is None else lambda: resource.setrlimit(resource.RLIMIT_AS, (memory, memory)),
        )

    def end(self, process: subprocess.Popen[str]) -> Run:
        with process:
            try:
                _, said = process.communicate(self.scenario.typed, timeout=SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return Run(process.returncode, said)

    def files(self) -> set[str]:
        """Names of all that is there, but for those that vary."""
        return {name for name in self._all() if not _matches(name, self.scenario.varies)}

    def outputs(self) -> dict[str, str]:
        """Name -> digest of what a user reads."""
        names = [name for name in self._all() if _matches(name, self.scenario.outputs)]
        if self.scenario.random:
            return dict.fromkeys(names, "")
        return {name: hashlib.sha256((self.folder / name).read_bytes()).hexdigest() for name in names}

    def _all(self) -> list[str]:
        found = (path for path in self.folder.rglob("*") if path.is_file() and not path.is_symlink())
        return [path.relative_to(self.folder).as_posix() for path in found]


def peak(status: str) -> int:
    """The largest address space that a process had, in bytes. status: what /proc says of it."""
    return max((int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmPeak:")), default=0)


def _most_memory(process: subprocess.Popen[str]) -> int:
    """peak() of a process, until it ends."""
    status, most = Path(f"/proc/{process.pid}/status"), 0
    while process.poll() is None:
        with suppress(FileNotFoundError):
            most = max(most, peak(status.read_text()))
        time.sleep(0.01)
    return most


def _matches(name: str, patterns: Sequence[str]) -> bool:
    return any(Path(name).match(pattern) for pattern in patterns)


class Reference:
    """A run without faults. calls: the most calls of one of its processes that could be interrupted. memory: the
    largest address space that it had, in bytes."""

    def __init__(self, scenario: Scenario, library: Path, folder: Path) -> None:
        self.place = Place(scenario, folder)
        log = folder.with_suffix(".log")
        process = self.place.start(LD_PRELOAD=library, FAULTS_LOG=log)
        with ThreadPoolExecutor(1) as watcher:
            memory = watcher.submit(_most_memory, process)
            run = self.place.end(process)
        self.memory = memory.result()
        assert run.code == 0, run.said
        assert self.place.outputs(), sorted(self.place.files())
        self.calls = max(Counter(line.split()[0] for line in log.read_text().splitlines()).values())


def built(folder: Path) -> Path:
    """The library to preload. Needs a C compiler."""
    library = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE, "-ldl"], check=True)
    return library
