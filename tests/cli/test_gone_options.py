"""Options that commands no longer have: one line says where they went."""

from __future__ import annotations

import pytest
from command_line import invoke


@pytest.mark.parametrize("arguments", [("chat", "demo"), ("generate", "demo", "-p", "x"), ("serve", "demo")])
@pytest.mark.parametrize("option", [("--lookahead", "4,3,4"), ("--lookahead=4,3,4",)])
def test_lookahead_is_a_method_of_bench(arguments: tuple[str, ...], option: tuple[str, ...]) -> None:
    said = "error: --lookahead is gone: use `medusa bench MODEL --methods lookahead`\n"
    assert invoke(*arguments, *option) == (2, "", said)


def test_an_option_that_never_was_is_a_usage_error() -> None:
    code, _, err = invoke("chat", "demo", "--lookahed", "4,3,4")
    assert code == 2
    assert "No such option" in err
