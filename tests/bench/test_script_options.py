"""benchmarks/common.py: the options that scripts make from dataclasses."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Literal

import common
import pytest

from medusa_cli.support.errors import MedusaError


@dataclass
class Measure:
    """What it measures.

    And how.
    """

    model: str
    more: tuple[Path, ...] = ()
    _: KW_ONLY
    data: Path
    widths: tuple[int, ...] = (1, 8)
    max_tokens: int = 64
    limit: int | None = None
    cold: bool = False
    type: Literal["F16", "F32"] = "F16"

    def run(self) -> None:
        raise MedusaError(f"{self}")


OPTIONS = ["demo", "a", "b", "--data", "c", "--widths", "2", "4", "-n", "3", "--cold"]


def test_options_come_from_the_fields(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["script.py", *OPTIONS])
    wanted = Measure("demo", (Path("a"), Path("b")), data=Path("c"), widths=(2, 4), max_tokens=3, cold=True)
    with pytest.raises(SystemExit) as ended:
        common.main(common.parser("A script.", Measure))
    assert ended.value.code == f"error: {wanted}"
    for wrong in (["demo"], ["demo", "--data", "c", "--type", "Q4"], ["--data", "c"]):
        with pytest.raises(SystemExit):
            common.parser("A script.", Measure).parse_args(wrong)
    capsys.readouterr()


def test_a_script_of_several_measurements_has_commands(capsys: pytest.CaptureFixture[str]) -> None:
    parser = common.parser("A script.", Measure, type("Other", (Measure,), {"__doc__": "Another one."}))
    assert parser.parse_args(["measure", *OPTIONS]).measurement is Measure
    with pytest.raises(SystemExit):
        parser.parse_args(["--help"])
    shown = capsys.readouterr().out
    assert "What it measures." in shown
    assert "Another one." in shown
