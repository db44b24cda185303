"""A token list under construction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from gguf import TokenType

from .tokenizer_files import AddedToken, looks_special

PADDING_SCORE, ADDED_SCORE = -10000.0, -1000.0


@dataclass
class Tokens:
    """`size` tokens: texts, GGUF token types, scores (SentencePiece only) and merges (byte-level only).

    model, pre: tokenizer.ggml.model and .pre. add_space_prefix None: libllama's default for the model.
    """

    model: str
    pre: str
    size: int
    scores: list[float] | None = None
    merges: list[str] | None = None
    add_space_prefix: bool | None = None
    texts: list[str] = field(init=False)
    types: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.texts = [f"[PAD{id}]" for id in range(self.size)]
        self.types = [int(TokenType.UNUSED)] * self.size

    def put(self, id: int, text: str, kind: TokenType, score: float = 0.0) -> None:
        """Sets one token."""
        self.texts[id], self.types[id] = text, int(kind)
        if self.scores is not None:
            self.scores[id] = score

    def put_added(self, added: Iterable[AddedToken], space: str = " ") -> None:
        """Sets added tokens; those beyond the embedding's rows cannot be used and are left out.

        space: what stands for a blank in the texts. libllama looks for user-defined tokens in the raw text.
        """
        for token in added:
            if token.id >= self.size:
                continue
            if token.special or looks_special(token.text):
                self.put(token.id, token.text, TokenType.CONTROL, ADDED_SCORE)
            else:
                self.put(token.id, token.text.replace(space, " "), TokenType.USER_DEFINED, ADDED_SCORE)

    def has(self, *texts: str) -> bool:
        """Whether all these texts are tokens."""
        return set(texts).issubset(self.texts)

    def repeated(self) -> str | None:
        """A text that two tokens have, None when all differ."""
        seen: set[str] = set()
        for text in self.texts:
            if text in seen:
                return text
            seen.add(text)
        return None
