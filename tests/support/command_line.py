"""Commands run in this process."""

from __future__ import annotations

from typer.testing import CliRunner

from medusa_cli import cli


def invoke(*arguments: str) -> tuple[int, str, str]:
    """Exit code, stdout, stderr."""
    result = CliRunner().invoke(cli.app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1", "TERM": "dumb"})
    return result.exit_code, result.stdout, result.stderr
