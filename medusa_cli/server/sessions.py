"""Which session answers a prompt: the one whose cache it continues, else a new one, else the least recently used."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from medusa_cli.api.model import Model
from medusa_cli.api.session import Session
from medusa_cli.decoding.saved_caches import CacheStore, is_worth_it
from medusa_cli.server.errors import log
from medusa_cli.support.errors import MedusaError

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
    used: float = 0.0
    """When it was taken last."""


class SessionPool:
    """Sessions of one engine, as many as the budget holds, at least one. Used on the engine's thread alone.

    How much of a prompt was cached tells what was asked before, so that nobody gets another client's cache. shared: all
    clients are one. store: takes the caches of sessions that are let go, and has those of earlier servers; who has the
    same name and the same `secret` as there is the same client.
    """

    def __init__(
        self,
        engine: Model,
        budget: int = DEFAULT_BUDGET,
        *,
        shared: bool = False,
        store: CacheStore | None = None,
        secret: str = "",
    ) -> None:
        self._engine = engine
        self._budget = budget
        self._shared = shared
        self._store = store
        self._secret = secret
        self._kept = [_Kept(engine, None)]  # the most recently used last

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, prompt: Sequence[int], client: str = "") -> Session:
        """The session to answer `prompt` of `client` in.

        The longest common prefix wins, unless more of that cache would be thrown away than used and the prompt is not
        simply asked again: then another conversation owns it, and a session of its own is opened while the budget
        allows, with a copy of what both share. Of equal ones, the least recently used goes.
        """
        asked, client = list(prompt), "" if self._shared else client
        best, used, lost = self._best(asked, client)
        chosen = best
        if best is None or (lost > used and used < len(asked) - 1):
            chosen = _Kept(self._engine.session(), None) if not self._is_full() else best or self._emptied()
            if chosen is best:
                self._save(best)
        assert chosen is not None
        chosen.client, chosen.used = client, time.time()
        if chosen in self._kept:
            self._kept.remove(chosen)
        self._kept.append(chosen)
        self._fill(chosen, asked, best, used)
        self._shrink()
        return chosen.session

    def keep(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Saves what all sessions have cached: of the most recently used one, and of others while `goes_on`."""
        for kept in reversed(self._kept):
            self._save(kept)
            if not goes_on():
                return

    def _best(self, prompt: list[int], client: str) -> tuple[_Kept | None, int, int]:
        """Of those of this client, the one that has the most of the prompt: how much, and what it has beyond that."""
        best, used, lost = None, -1, 0
        for kept in self._kept:
            if kept.client not in (client, None):
                continue
            cached = kept.session.cached_tokens
            common = common_prefix(cached, prompt)
            if common > used:
                best, used, lost = kept, common, len(cached) - common
        return best, used, lost

    def _fill(self, chosen: _Kept, prompt: list[int], best: _Kept | None, used: int) -> None:
        """Gives it what is known of the prompt elsewhere: in a file, or in the session `best`, which has that much."""
        try:
            if self._store is not None:
                line = chosen.session.bring_from(self._store, prompt, self._owner(chosen), used)
                if line:
                    log(MedusaError(line))
            if best is None or best is chosen or not is_worth_it(used, len(best.session.cached_tokens)):
                return
            if common_prefix(chosen.session.cached_tokens, prompt) < used and self._has_room(best.session.nbytes):
                chosen.session.copy_from(best.session)
        except (MedusaError, OSError, MemoryError) as error:
            log(error)

    def _owner(self, kept: _Kept) -> str:
        """What files name its client: nobody reads a name or a key from them."""
        return hashlib.sha256(f"{self._secret}\n{kept.client}".encode()).hexdigest()

    def _save(self, kept: _Kept) -> None:
        if self._store is None or kept.client is None:
            return
        try:
            kept.session.keep_in(self._store, self._owner(kept), kept.used)
        except (MedusaError, OSError, MemoryError) as error:
            log(error)

    def _shrink(self) -> None:
        """Caches grow with their conversations: the least recently used go until the others fit."""
        for kept in self._kept[:-1]:
            if sum(one.session.nbytes for one in self._kept) <= self._budget:
                return
            self._let_go(kept)

    def _let_go(self, kept: _Kept) -> None:
        self._save(kept)
        if kept.session is self._engine:  # it cannot be closed
            kept.session.forget()
            kept.client = None
        else:
            self._kept.remove(kept)
            kept.session.close()

    def _emptied(self) -> _Kept:
        """The least recently used of another client, without what that one left in it."""
        oldest = self._kept[0]
        self._let_go(oldest)
        return oldest if oldest in self._kept else _Kept(self._engine.session(), None)

    def _has_room(self, size: int) -> bool:
        """Whether the budget holds a session of that size in place of the newest one."""
        return sum(kept.session.nbytes for kept in self._kept[:-1]) + size <= self._budget

    def _is_full(self) -> bool:
        """Whether one more session is beyond the budget."""
        sizes = [kept.session.nbytes for kept in self._kept]
        return sum(sizes) + min(sizes) > self._budget
