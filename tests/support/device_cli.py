"""The whole command on a GPU that is none: run by tests.

    python device_cli.py '{"memory": 1000000}' generate base.gguf -p x

The first argument is what _native_testing.set_device() takes, from the start.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ENVIRONMENT = {**os.environ, "MEDUSA_ISA": "off", "GGML_BACKEND_PATH": "", "NO_COLOR": "1", "TERM": "dumb"}


def command_line(behaviour: dict[str, Any], *arguments: str) -> list[str]:
    """Of a process with such a device, for a test that needs a terminal around it."""
    return [sys.executable, __file__, json.dumps(behaviour), *arguments]


def run(behaviour: dict[str, Any], *arguments: str, stdin: str = "") -> tuple[int, str, str]:
    """Exit code, stdout, stderr of `medusa ARGUMENTS`."""
    done = subprocess.run(
        command_line(behaviour, *arguments), cwd=Path(__file__).parent, env=ENVIRONMENT, input=stdin,
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


if __name__ == "__main__":
    import _native_testing as testing

    from medusa_cli.cli import main

    testing.pretend_device()
    testing.set_device(**json.loads(sys.argv[1]))
    sys.argv = ["medusa", *sys.argv[2:]]
    main()
