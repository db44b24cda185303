"""Progress bars of phases."""

from __future__ import annotations

import io
import time

from rich.console import Console

from medusa_cli.support.progress import phase


def test_an_estimate_that_changes_keeps_the_speed_and_the_time_left() -> None:
    screen = io.StringIO()
    with phase(Console(file=screen, force_terminal=True, width=80), "Writing text", "tokens") as bar:
        for done in (0, 100, 200, 300):
            bar.update(done, 1000 + done / 10)
            time.sleep(0.02)
    last = screen.getvalue().split("Writing text")[-1]
    assert "29%" in last
    assert "tokens/s" in last
    assert "-:--:--" not in last


def test_lines_where_there_is_no_terminal() -> None:
    screen = io.StringIO()
    console = Console(file=screen, width=40)
    with phase(console, "Reading", "tokens") as bar:
        bar._told -= 3600
        bar.update(1200, 4800, "note")
    assert screen.getvalue() == "Reading: 1,200 tokens of 4,800 tokens (25%), 0 tokens/s note\n"
