"""Lookahead decoding (Fu et al. 2024), a method that is compared with ours: a session that drafts by it alone."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medusa_cli.decoding import runtime
from medusa_cli.support.errors import MedusaError

if TYPE_CHECKING:
    from medusa_cli import native
    from medusa_cli.decoding.options import EngineOptions

DEFAULT = "4,3,4"
"""Window, n-gram and guesses where nothing is said."""


def parse(text: str) -> tuple[int, int, int]:
    """ "4,3,4": width of the window, tokens of an n-gram, n-grams verified in a step. MedusaError for another."""
    parts = [part.strip() for part in text.split(",")]
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise MedusaError(f"--lookahead {text}: give three numbers such as {DEFAULT}")
    window, ngram, guesses = map(int, parts)
    return window, ngram, guesses


def open_session(model: native.Model, text: str, options: EngineOptions) -> native.Session:
    """A session without heads. MedusaError or NativeError for numbers, or a model, that it does not work with."""
    from medusa_cli import native

    return runtime.open_session(model, None, None, options, lookahead=native.Lookahead(*parse(text)))
