"""Tokenizer files of a checkpoint -> GGUF's tokenizer metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace

import gguf

from ..checkpoints.checkpoint import Checkpoint
from ..errors import MedusaError
from .byte_level import is_byte_level, read_byte_level
from .config import Config
from .sentencepiece import MODEL_FILE, read_byte_fallback, read_sentencepiece
from .special_tokens import SpecialTokens, read_special_tokens
from .tokenizer_files import TOKENIZER, TokenizerFiles, Tokens


@dataclass(frozen=True)
class Vocabulary:
    """Everything under tokenizer.* of a GGUF. strips_right: its special tokens swallow white space behind them."""

    tokens: Tokens
    special: SpecialTokens
    strips_right: bool

    def write(self, writer: gguf.GGUFWriter) -> None:
        """Adds the metadata."""
        tokens = self.tokens
        writer.add_tokenizer_model(tokens.model)
        writer.add_tokenizer_pre(tokens.pre)
        writer.add_token_list(tokens.texts)
        if tokens.scores is not None:
            writer.add_token_scores(tokens.scores)
        writer.add_token_types(tokens.types)
        if tokens.merges is not None:
            writer.add_token_merges(tokens.merges)
        if tokens.add_space_prefix is not None:
            writer.add_add_space_prefix(tokens.add_space_prefix)
        self.special.write(writer)


def read_vocabulary(checkpoint: Checkpoint, config: Config, size: int) -> Vocabulary:
    """The vocabulary with `size` tokens (rows of the embedding); ids without a token become unused ones.

    A byte-level tokenizer.json decides; else tokenizer.model; else a tokenizer.json made from a SentencePiece model.
    MedusaError when there is no tokenizer that libllama can reproduce.
    """
    files = TokenizerFiles(checkpoint)
    tokens = _read_tokens(files, size)
    repeated = tokens.repeated()
    if repeated is not None:
        raise MedusaError(
            f"{checkpoint.root}: the tokenizer gives the text {repeated!r} to two tokens, which libllama cannot load: "
            "give a GGUF as the base"
        )
    special = read_special_tokens(files, config, size)
    if tokens.merges is not None:
        # tokenizer.json says all that is added; where it is silent, libllama's default may differ.
        special = replace(special, adds={"bos": False, **special.adds})
    added = [*files.listed_tokens(), *files.decoder_tokens()]
    return Vocabulary(tokens, special, any(token.special and token.strips_right for token in added))


def _read_tokens(files: TokenizerFiles, size: int) -> Tokens:
    if files.tokenizer is not None and is_byte_level(files):
        return read_byte_level(files, size)
    if files.checkpoint.path(MODEL_FILE) is not None:
        return read_sentencepiece(files, size)
    if files.tokenizer is None:
        raise MedusaError(f"{files.checkpoint.root}: no {TOKENIZER} or {MODEL_FILE} there, add the tokenizer's files")
    return read_byte_fallback(files, size)
