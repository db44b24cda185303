"""Which session answers a prompt: the one whose cache it continues, else a new one, else the least recently used."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from medusa_cli.api.model import Model
from medusa_cli.api.session import Session

DEFAULT_BUDGET = 1 << 30
"""Bytes that the prompt caches of all conversations may take together."""


def common_prefix(one: Sequence[int], other: Sequence[int]) -> int:
    """Tokens with which both begin."""
    most = min(len(one), len(other))
    low, high = 0, most
    # Slices are compared by the interpreter itself: a few of them beat a loop over thousands of tokens.
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


@dataclass(eq=False)
class _Kept:
    session: Session
    client: str | None
    """Who alone may know what its cache holds; None: it holds nothing."""


class SessionPool:
    """Sessions of one engine, as many as the budget holds, at least one. Used on the engine's thread alone.

    How much of a prompt was cached tells what was asked before, so that nobody gets another client's cache. shared: all
    clients are one.
    """

    def __init__(self, engine: Model, budget: int = DEFAULT_BUDGET, *, shared: bool = False) -> None:
        self._engine = engine
        self._budget = budget
        self._shared = shared
        self._kept = [_Kept(engine, None)]  # the most recently used last

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, prompt: Sequence[int], client: str = "") -> Session:
        """The session to answer `prompt` of `client` in.

        The longest common prefix wins, unless more of that cache would be thrown away than used and the prompt is not
        simply asked again: then another conversation owns it, and a session of its own is opened while the budget
        allows. Of equal ones, the least recently used goes.
        """
        client = "" if self._shared else client
        chosen = self._chosen(list(prompt), client)
        chosen.client = client
        if chosen in self._kept:
            self._kept.remove(chosen)
        self._kept.append(chosen)
        self._shrink()
        return chosen.session

    def _shrink(self) -> None:
        """Caches grow with their conversations: the least recently used go until the others fit."""
        for kept in self._kept[:-1]:
            if sum(one.session.nbytes for one in self._kept) <= self._budget:
                return
            self._let_go(kept)

    def _let_go(self, kept: _Kept) -> None:
        if kept.session is self._engine:  # it cannot be closed
            kept.session.forget()
            kept.client = None
        else:
            self._kept.remove(kept)
            kept.session.close()

    def _chosen(self, prompt: list[int], client: str) -> _Kept:
        best, used, lost = None, -1, 0
        for kept in self._kept:
            if kept.client not in (client, None):
                continue
            cached = kept.session.cached_tokens
            common = common_prefix(cached, prompt)
            if common > used:
                best, used, lost = kept, common, len(cached) - common
        is_asked_again = used >= len(prompt) - 1
        if best is not None and (lost <= used or is_asked_again):
            return best
        if not self._is_full():
            return _Kept(self._engine.session(), None)
        return best or self._emptied()

    def _emptied(self) -> _Kept:
        """The least recently used of another client, without what that one left in it."""
        oldest = self._kept[0]
        self._let_go(oldest)
        return oldest if oldest in self._kept else _Kept(self._engine.session(), None)

    def _is_full(self) -> bool:
        """Whether one more session is beyond the budget."""
        sizes = [kept.session.nbytes for kept in self._kept]
        return sum(sizes) + min(sizes) > self._budget
