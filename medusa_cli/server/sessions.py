"""Which session answers a prompt: the one whose cache it continues, else a new one, else the least recently used."""

from __future__ import annotations

from collections.abc import Sequence

from medusa_cli.server.engine import Engine, Session

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


class SessionPool:
    """Sessions of one engine, as many as the budget holds, at least one. Used on the engine's thread alone."""

    def __init__(self, engine: Engine, budget: int = DEFAULT_BUDGET) -> None:
        self._engine = engine
        self._budget = budget
        self._sessions = [engine.own_session]  # the most recently used last

    def __len__(self) -> int:
        return len(self._sessions)

    def take(self, prompt: Sequence[int]) -> Session:
        """The session to answer `prompt` in.

        The longest common prefix wins, unless more of that cache would be thrown away than used and the prompt is not
        simply asked again: then another conversation owns it, and a session of its own is opened while the budget
        allows. Of equal ones, the least recently used goes.
        """
        chosen = self._chosen(list(prompt))
        if chosen in self._sessions:
            self._sessions.remove(chosen)
        self._sessions.append(chosen)
        return chosen

    def _chosen(self, prompt: list[int]) -> Session:
        best, used, lost = self._sessions[0], -1, 0
        for session in self._sessions:
            cached = list(session.cached_tokens)
            common = common_prefix(cached, prompt)
            if common > used:
                best, used, lost = session, common, len(cached) - common
        is_asked_again = used >= len(prompt) - 1
        return best if lost <= used or is_asked_again or self._is_full(best) else self._engine.session()

    def _is_full(self, like: Session) -> bool:
        """Whether one more session of that size is beyond the budget."""
        return sum(session.nbytes for session in self._sessions) + like.nbytes > self._budget
