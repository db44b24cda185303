"""What `medusa train` does about bad prompts, full disks and kill -9. The model is tiny and random, the engine real."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from killed_training import PHASES, options, tiny_model
from rich.console import Console

from medusa_cli.prompts import prompt_files
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import loop, train
from medusa_cli.training.text import corpus, dialogs
from medusa_cli.training.text.corpus import Corpus

HIDDEN = 64


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_model(tmp_path_factory.mktemp("base") / "tiny.gguf")


@dataclass(frozen=True)
class Whole:
    """A run that nothing disturbed: its output, and how many steps it trained."""

    output: bytes
    steps: int


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as context:
        stepped = counted(context, loop, "learning_rate")
        train.run(options(base, folder, console=quiet()))
    return Whole((folder / "out.gguf").read_bytes(), stepped())


def stored(folder: Path) -> Corpus:
    return Corpus(next((folder / "work").glob("*/text")), HIDDEN)


def shown(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def quiet() -> Console:
    return Console(file=io.StringIO(), width=300)


# --- prompts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "holds no prompts"),
        (b"\n \n", "holds no prompts"),
        (b"[]", "holds no prompts"),
        (b'{"prompt": "caf\xe9"}', r":1: not UTF-8 text"),
        ('{"prompt": "a"}'.encode("utf-16"), r":1: not UTF-8 text"),
        (b'[{"prompt": "caf\xe9"}]', "not UTF-8 text"),
        (b'[{"prompt": "a"}', "element 1 is followed by neither"),
        (b'[{"prompt": "a"} {"prompt": "b"}]', "element 1 is followed by neither"),
        (b'[{"prompt": "a"}, {"prompt": ]', "element 2: not a JSON value"),
        (b'[{"prompt": "a"}]\n[{"prompt": "b"}]', "more than one JSON array"),
        (b"[" * 100_000, "element 1: not a JSON value"),
    ],
)
def test_a_bad_prompt_file_is_one_line_before_anything_starts(
    base: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    data = tmp_path / "prompts.json"
    data.write_bytes(content)
    with pytest.raises(MedusaError, match=rf"prompts\.json.*{message}") as caught:
        train.run(options(base, tmp_path, data=data))
    assert "\n" not in str(caught.value)
    assert list(tmp_path.iterdir()) == [data]


@pytest.mark.parametrize("start", [b'{"prompt": "', b'[{"prompt": "', b"[", b""])
def test_one_giant_line_costs_neither_time_nor_memory(tmp_path: Path, start: bytes) -> None:
    data = tmp_path / "prompts.jsonl"
    with data.open("wb") as file:
        file.write(start)
        for _ in range(64):
            file.write(b"many words " * ((1 << 20) // 11))
    code = (
        "import resource, sys, time\n"
        "from pathlib import Path\n"
        "from medusa_cli.training.text import dialogs\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "try:\n    dialogs.FileSource(Path(sys.argv[1]))\n"
        "except dialogs.MedusaError as error:\n    print(error)\n"
        "print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)\n"
        "print(time.process_time())\n"
    )
    if sys.platform != "linux":
        pytest.skip("reads memory in KiB")
    done = subprocess.run([sys.executable, "-c", code, str(data)], capture_output=True, text=True, check=True)
    message, mebibytes, seconds = done.stdout.splitlines()
    assert "prompts.jsonl" in message
    assert int(mebibytes) < 100
    assert float(seconds) < 30


def test_an_array_is_read_in_pieces_whatever_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_files, "CHUNK", 7)
    data = tmp_path / "share.json"
    rows = [
        {"id": str(i), "conversations": [{"from": "human", "value": f"först {i} ü"}, {"from": "gpt", "value": "no"}]}
        for i in range(50)
    ]
    data.write_text("\ufeff \n" + json.dumps(rows, indent=2, ensure_ascii=False), "utf-8")
    assert [item.turns for item in dialogs.load_conversations(data)] == [(f"först {i} ü",) for i in range(50)]


def test_prompts_beyond_the_context_are_left_out_and_counted(base: Path, tmp_path: Path) -> None:
    data, console = tmp_path / "prompts.jsonl", quiet()
    rows: list[dict[str, Any]] = [{"prompt": "y" * 5000}, {"prompt": "z" * (dialogs.MAX_TURN + 1)}]
    rows += [{"turns": [f"question {i}", "x" * (dialogs.MAX_TURN + 1)]} for i in range(40)]
    data.write_text("\n".join(map(json.dumps, rows)))
    result = train.run(options(base, tmp_path, data=data, console=console))
    assert result.tokens > 0
    assert "over 640 tokens" in shown(console)
    assert "1 conversations that open with over 65536 characters" in shown(console)


def test_only_prompts_beyond_the_context(base: Path, tmp_path: Path) -> None:
    data, console = tmp_path / "prompts.jsonl", quiet()
    data.write_text(json.dumps({"prompt": "y" * 5000}))
    with pytest.raises(MedusaError, match="0 tokens of usable text"):
        train.run(options(base, tmp_path, data=data, console=console))
    assert "Skipped 8 prompts of over 640 tokens" in shown(console)
    data.write_text(json.dumps({"prompt": "z" * (dialogs.MAX_TURN + 1)}))
    with pytest.raises(MedusaError, match="every prompt is longer"):
        train.run(options(base, tmp_path, data=data))


def test_fewer_tokens_than_one_batch_still_train(base: Path, tmp_path: Path) -> None:
    data = tmp_path / "prompts.jsonl"
    data.write_text("\n".join(json.dumps({"prompt": f"say {i}"}) for i in range(3)))
    changes = {"tokens": 1000, "data": data, "console": quiet()}
    result = train.run(options(base, tmp_path, **changes))
    plan = json.loads(next((tmp_path / "work").glob("*/*.plan.json")).read_text())
    assert plan["batch"] < 512
    assert result.tokens < 1500
    assert (tmp_path / "out.gguf").stat().st_size > 0


# --- full disk -------------------------------------------------------------------------------------


def disk_full_at(monkeypatch: pytest.MonkeyPatch, name: str, *error: object) -> None:
    """np.save of the states of shard `name` raises OSError(*error)."""
    real = np.save

    def save(file: Any, array: Any) -> None:
        if name in str(file.name):
            file.write(b"half")
            raise OSError(*error)
        real(file, array)

    monkeypatch.setattr(np, "save", save)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        ((errno.ENOSPC, os.strerror(errno.ENOSPC)), "no space left"),
        (("3200 requested and 1 written",), "is the device full"),
    ],
)
def test_a_full_disk_while_text_is_written(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: tuple[object, ...], message: str
) -> None:
    monkeypatch.setattr(corpus, "SHARD_SECONDS", -1.0)
    given = options(base, tmp_path, console=quiet())
    with monkeypatch.context() as context:
        disk_full_at(context, "shard-00006.states", *error)
        with pytest.raises(MedusaError, match=message) as caught:
            train.run(given)
    assert "shard-00006.states.npy" in str(caught.value)
    assert "\n" not in str(caught.value)
    saved = stored(tmp_path)
    assert len(saved.shards) == 6
    assert not list((tmp_path / "work").rglob("*.part"))
    train.run(given)
    finished = stored(tmp_path)
    assert finished.texts[: len(saved.texts)] == saved.texts
    assert finished.tokens >= 3000
    assert given.output.exists()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="limits of file sizes are POSIX")
@pytest.mark.parametrize(
    ("limit", "shard", "name"),
    [
        (20_000, 64_000, "shard-00000.states.npy"),
        (80_000, 1, "teacher."),
        (500_000, 1, "hydra.pt"),
    ],
)
def test_files_that_may_not_grow(base: Path, tmp_path: Path, limit: int, shard: int, name: str) -> None:
    """The kernel's own refusal, at the text's first shard, at the teacher's rows and at the checkpoint."""
    code = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "from pathlib import Path\n"
        "from killed_training import options\n"
        "from medusa_cli.support.errors import MedusaError\n"
        "from medusa_cli.training import train\n"
        "from medusa_cli.training.text import corpus\n"
        "limit, corpus.SHARD_BYTES = int(sys.argv[3]), int(sys.argv[4])\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))\n"
        "try:\n    train.run(options(Path(sys.argv[1]), Path(sys.argv[2])))\n"
        "except MedusaError as error:\n    print(error)\n"
    )
    command = [sys.executable, "-c", code, str(base), str(tmp_path), str(limit), str(shard)]
    done = subprocess.run(
        command, cwd=Path(__file__).parents[1] / "support", capture_output=True, text=True, check=True
    )
    (message,) = done.stdout.splitlines()
    assert name in message
    assert "leaked" not in done.stderr
    assert "could not be written completely" in message or "File too large" in message
    assert not list(tmp_path.rglob("*.part"))
    train.run(options(base, tmp_path, console=quiet()))
    assert (tmp_path / "out.gguf").exists()


def test_a_full_disk_at_the_checkpoint_keeps_the_one_before(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole
) -> None:
    real, saves = torch.save, 0

    def save(state: Any, path: Path) -> None:
        nonlocal saves
        saves += 1
        if saves == 5:
            raise RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos\nmore")
        real(state, path)

    given = options(base, tmp_path, console=quiet())
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", -1.0)
    monkeypatch.setattr(loop, "CHECKPOINT_SHARE", math.inf)
    with monkeypatch.context() as context:
        context.setattr(torch, "save", save)
        with pytest.raises(MedusaError, match=r"\.pt: could not be written completely") as caught:
            train.run(given)
    assert "\n" not in str(caught.value)
    checkpoint = loop.load_checkpoint(next((tmp_path / "work").glob("*/*.pt")))
    assert checkpoint is not None
    assert checkpoint["step"] == 4
    train.run(given)
    assert given.output.read_bytes() == whole.output


# --- kill -9 ---------------------------------------------------------------------------------------


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> Callable[[], int]:
    real, calls = getattr(owner, name), 0

    def call(*args: Any, **kwargs: Any) -> Any:
        nonlocal calls
        calls += 1
        return real(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)
    return lambda: calls


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="kill -9 is POSIX")
@pytest.mark.parametrize("phase", PHASES)
def test_a_killed_run_goes_on(
    base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, whole: Whole, phase: str
) -> None:
    command = [
        sys.executable,
        str(Path(__file__).parents[1] / "support" / "killed_training.py"),
        str(base),
        str(tmp_path),
        phase,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert not (tmp_path / "out.gguf").exists()
    left = stored(tmp_path)
    assert len(left.texts) == {"generate": 11, "shard": 4}.get(phase, len(left.texts))

    added = counted(monkeypatch, Corpus, "add")
    stepped = counted(monkeypatch, loop, "learning_rate")
    given = options(base, tmp_path, sidecar=phase != "join", console=quiet())
    train.run(given)
    finished = stored(tmp_path)
    assert finished.texts[: len(left.texts)] == left.texts
    assert added() == len(finished.texts) - len(left.texts)
    everything = dict.fromkeys(("measure", "write", "join"), whole.steps)
    if phase not in ("generate", "shard"):
        assert stepped() == whole.steps - {"fit": 13, "checkpoint": 3, **everything}.get(phase, 0)
    assert given.output.exists()
    if phase in ("prepare", "teacher", "fit", "checkpoint", "measure", "write"):
        assert given.output.read_bytes() == whole.output
    assert not [path for path in tmp_path.rglob("*") if path.name.endswith(".part") or "joining-" in path.name]
