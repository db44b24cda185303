"""Files whose text goes with the next message of a chat."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from medusa_cli.chat.conversation import Conversation, check_message
from medusa_cli.decoding.template_bounds import MOST_CHARACTERS
from medusa_cli.prompts.framing import with_files
from medusa_cli.support import units
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import expanded, read_bounded_text

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine

BYTES_PER_TOKEN = 64
"""Text has no more than this: longer files than a context can hold are refused before their tokens are counted."""
LEAST_BYTES = 1 << 20


@dataclass(frozen=True)
class TextFile:
    """tokens: length of the text by itself."""

    name: str
    text: str
    nbytes: int
    tokens: int

    def __str__(self) -> str:
        return f"{self.name} ({units.size(self.nbytes)}, {self.tokens:,} tokens)"


def message(files: Sequence[TextFile], text: str) -> str:
    """What the model gets: the files, then what was typed."""
    return with_files([(file.name, file.text) for file in files], text) if files else text


def read(engine: Engine, conversation: Conversation, before: Sequence[TextFile], name: str, most: int) -> TextFile:
    """Reads a file to send with the next message, after those in `before`. most: tokens that the answer may get.

    MedusaError, one line, if it is not text, or if the prompt would be too long with it.
    """
    path = expanded(name)
    bound = min(max(LEAST_BYTES, BYTES_PER_TOKEN * engine.n_ctx), MOST_CHARACTERS)
    text, nbytes = read_bounded_text(path, bound, f"more than a context of {engine.n_ctx} tokens holds")
    if not text:
        raise MedusaError(f"{path} is empty: give a file with text")
    file = TextFile(name, text, nbytes, len(engine.raw_tokens(text)))
    files = [*before, file]
    check_message(engine, conversation, message(files, ""), most, " and ".join(one.name for one in files))
    return file
