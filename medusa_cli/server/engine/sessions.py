"""Which session answers a prompt: the one whose cache it continues, else a new one, else the least recently used."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from medusa_cli.api.model import Model
from medusa_cli.api.session import Session
from medusa_cli.decoding.saved_caches import CacheStore, common_prefix, is_worth_it
from medusa_cli.support.errors import MedusaError, report

DEFAULT_BUDGET = 1 << 30
"""Bytes that the prompt caches of all conversations may take together."""

OWN = 256
"""Tokens of its own that make a conversation worth a session beside the one it shares the others with."""


@dataclass(eq=False)
class _Kept:
    session: Session
    client: str | None
    """The only client who may know what its cache holds; None: it holds nothing."""
    used: float = 0.0
    """When it was last taken."""


class SessionPool:
    """Sessions of one engine, as many as the budget holds, at least one. Used only on the engine's thread.

    How much of a prompt was cached tells what was asked before, so nobody gets another client's cache. shared: all
    clients count as one. store: takes the caches of sessions that are let go, and has those of earlier servers, where
    the same name with the same `secret` is the same client.
    """

    def __init__(
        self,
        engine: Model,
        budget: int = DEFAULT_BUDGET,
        *,
        shared: bool = False,
        store: CacheStore | None = None,
        secret: str = "",
        log: Callable[[BaseException], object] = report,
    ) -> None:
        self._log = log
        self._engine = engine
        self._budget = budget
        self._shared = shared
        self._store = store
        self._secret = secret
        self._kept = [_Kept(engine, None)]  # the most recently used last

    def __len__(self) -> int:
        return len(self._kept)

    def take(self, prompt: Sequence[int], client: str = "") -> Session:
        """The session in which to answer `prompt` of `client`.

        The longest common prefix wins, and its session is used if little else would be thrown away or the prompt is
        simply asked again. Otherwise another conversation owns that session: a new one is opened while the budget
        allows, with a copy of what both share. Of equal ones, the least recently used goes.
        """
        asked, client = list(prompt), "" if self._shared else client
        best, used, lost = self._best(asked, client)
        is_owned, copies = lost > used, False
        if best is not None and (used >= len(asked) - 1 or not (is_owned or lost > OWN)):
            chosen = best
        else:
            copies = best is not None and is_worth_it(used, used + lost) and self._has_room(best.session.nbytes)
            if copies or ((best is None or is_owned) and not self._is_full()):
                chosen = _Kept(self._engine.session(), None)
            elif best is None:
                chosen = self._emptied()
            else:
                chosen = best
                self._save(best)
        chosen.client, chosen.used = client, time.time()
        if chosen in self._kept:
            self._kept.remove(chosen)
        self._kept.append(chosen)
        self._fill(chosen, asked, best if copies else None, used)
        self._shrink()
        return chosen.session

    def keep(self, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Saves what sessions have cached: the most recently used one first, then others while `goes_on`."""
        for kept in reversed(self._kept):
            self._save(kept)
            if not goes_on():
                return

    def _best(self, prompt: list[int], client: str) -> tuple[_Kept | None, int, int]:
        """The session of this client that has the most of the prompt, how much that is, and what it has beyond it."""
        best, used, lost = None, -1, 0
        for kept in self._kept:
            if kept.client not in (client, None):
                continue
            cached = kept.session.cached_tokens
            common = common_prefix(cached, prompt)
            if common > used:
                best, used, lost = kept, common, len(cached) - common
        return best, used, lost

    def _fill(self, chosen: _Kept, prompt: list[int], source: _Kept | None, used: int) -> None:
        """Gives it what is cached of the prompt elsewhere: in a file, or `used` tokens in the session of `source`."""
        try:
            if self._store is not None:
                line = chosen.session.bring_from(self._store, prompt, self._owner(chosen), used)
                if line:
                    self._log(MedusaError(line))
            if source is not None and common_prefix(chosen.session.cached_tokens, prompt) < used:
                chosen.session.copy_from(source.session)
        except (MedusaError, OSError, MemoryError) as error:
            self._log(error)

    def _owner(self, kept: _Kept) -> str:
        """What files call its client: they reveal neither a name nor a key."""
        return hashlib.sha256(f"{self._secret}\n{kept.client}".encode()).hexdigest()

    def _save(self, kept: _Kept) -> None:
        if self._store is None or kept.client is None:
            return
        try:
            kept.session.keep_in(self._store, self._owner(kept), kept.used)
        except (MedusaError, OSError, MemoryError) as error:
            self._log(error)

    def _shrink(self) -> None:
        """Caches grow with their conversations: the least recently used are let go until the others fit."""
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
        """Another client's least recently used session, without what that client left in it."""
        oldest = self._kept[0]
        self._let_go(oldest)
        return oldest if oldest in self._kept else _Kept(self._engine.session(), None)

    def _has_room(self, size: int) -> bool:
        """Whether the budget has room for one more session of that size."""
        return sum(kept.session.nbytes for kept in self._kept) + size <= self._budget

    def _is_full(self) -> bool:
        """Whether one more session would exceed the budget."""
        return not self._has_room(min(kept.session.nbytes for kept in self._kept))
