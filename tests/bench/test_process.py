"""medusa_cli/bench/process.py: objects in processes of their own."""

from __future__ import annotations

import os

import pytest

from medusa_cli.bench.process import Remote
from medusa_cli.support.errors import MedusaError


class Adder:
    """Lives in another process."""

    def __init__(self, start: int) -> None:
        if start < 0:
            raise MedusaError("start at 0 or above")
        self._sum = start

    def add(self, numbers: list[int]) -> int:
        print("a library that prints where it likes")
        self._sum += sum(numbers)
        return self._sum

    def kernels(self) -> str | None:
        return os.environ.get("MEDUSA_ISA")

    def fail(self) -> None:
        raise MedusaError("no such type")

    def end(self) -> None:
        os._exit(3)


def test_an_object_keeps_its_state_in_its_process() -> None:
    with Remote(Adder, 2) as remote:
        assert [remote.call("add", (1, 2)), remote.call("add", [4])] == [5, 9]


def test_llama_cpp_s_kernels_are_asked_for_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MEDUSA_ISA", "scalar")
    with Remote(Adder, 0) as ours, Remote(Adder, 0, stock_kernels=True) as stock:
        assert (ours.call("kernels"), stock.call("kernels")) == ("scalar", "off")


def test_an_error_there_is_an_error_here_and_the_process_goes_on() -> None:
    with Remote(Adder, 0) as remote:
        with pytest.raises(MedusaError, match=r"^our kernels: no such type$"):
            remote.call("fail")
        assert remote.call("add", [1]) == 1
        with pytest.raises(MedusaError, match=r"^our kernels: its process ended with code 3"):
            remote.call("end")


def test_an_object_that_cannot_be_made_says_why() -> None:
    with Remote(Adder, -1) as remote, pytest.raises(MedusaError, match=r"^our kernels: start at 0 or above$"):
        remote.call("add", [1])
