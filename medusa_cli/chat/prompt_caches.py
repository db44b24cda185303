"""Keeps what the model has read of a chat in the cache folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from medusa_cli.decoding.saved_caches import CacheStore, default_folder
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.units import size

if TYPE_CHECKING:
    from medusa_cli.chat.conversation import Conversation
    from medusa_cli.decoding.runtime import Engine


class PromptCaches:
    """Saving and restoring both return a remark, or ""."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._store = CacheStore(default_folder())

    def brought_back(self, conversation: Conversation) -> str:
        """Restores what the model has read of the conversation."""
        tokens = conversation.tokens(self._engine)
        cached, damaged = self._store.bring(self._engine, tokens)
        found = f"{cached:,} of {len(tokens):,} tokens need not be read again"
        return "; ".join(filter(None, [found if cached else "", damaged]))

    def kept(self) -> str:
        """Saves what the model has read; a failure is only a remark."""
        try:
            saved = self._store.keep(self._engine)
        except MedusaError as error:
            return f"what the model has read was not saved: {error}"
        return f"what the model has read ({size(self._engine.session.state_size)}) is in the cache" if saved else ""
