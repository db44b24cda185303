"""Facts about this machine, from the system."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path


def cpu_name() -> str | None:
    """The CPU's name as the system gives it."""
    for line in _lines("/proc/cpuinfo"):
        if line.startswith(("model name", "Model")):
            return line.partition(":")[2].strip()
    return platform.processor() or None


def memory() -> tuple[int | None, int | None]:
    """Bytes of main memory: all of it, and what is available now; None if the system does not tell."""
    if sys.platform == "win32":
        return _windows_memory()
    total, available = _of_the_system()
    limit, used = (_number(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if limit is None or used is None:  # not in a container with a limit
        return total, available
    left = max(limit - used, 0)
    return limit if total is None else min(total, limit), left if available is None else min(available, left)


def _number(path: str) -> int | None:
    """The number in a file; None if the file holds something else or does not exist."""
    found = _lines(path)
    return int(found[0]) if found and found[0].isdigit() else None


def _of_the_system() -> tuple[int | None, int | None]:
    fields = {name: value for name, _, value in (line.partition(":") for line in _lines("/proc/meminfo"))}
    if "MemTotal" in fields:
        available = fields.get("MemAvailable")
        total, left = (1024 * int(value.split()[0]) if value else None for value in (fields["MemTotal"], available))
        return total, left
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), None
    except (ValueError, OSError):
        return None, None


def _windows_memory() -> tuple[int | None, int | None]:
    import ctypes

    class Status(ctypes.Structure):
        _fields_ = [
            ("length", ctypes.c_ulong),
            ("load", ctypes.c_ulong),
            *(
                (name, ctypes.c_ulonglong)
                for name in ("total", "free", "pages", "pages_free", "virtual", "virtual_free")
            ),
            ("extended", ctypes.c_ulonglong),
        ]

    status = Status()
    status.length = ctypes.sizeof(Status)
    if not ctypes.windll.kernel32.GlobalMemoryStatusEx(ctypes.byref(status)):  # type: ignore[attr-defined]
        return None, None
    return int(status.total), int(status.free)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
