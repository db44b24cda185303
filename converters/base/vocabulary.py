"""Tokenizer files of a checkpoint -> GGUF's tokenizer metadata."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import gguf
from gguf import TokenType

from ..checkpoints.checkpoint import Checkpoint
from ..errors import MedusaError
from .config import Config
from .pretokenizers import find_pretokenizer
from .sentencepiece import MODEL_FILE, read_byte_fallback, read_sentencepiece
from .special_tokens import SpecialTokens, read_special_tokens
from .tokenizer_files import TOKENIZER, TokenizerFiles, Tokens

ENCODED_SPACE = "Ġ"


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


# --- byte-level BPE (GPT-2's kind) from tokenizer.json ---------------------------------------------


def is_byte_level(files: TokenizerFiles) -> bool:
    """True for a BPE whose tokens are bytes written as printable characters."""
    model = files.model
    return model.get("type") == "BPE" and not model.get("byte_fallback") and _mentions_byte_level(files.tokenizer)


def read_byte_level(files: TokenizerFiles, size: int) -> Tokens:
    """Tokens and merges. MedusaError when they are damaged, too many, or need an unknown pre-tokenizer."""
    where = files.where(TOKENIZER)
    tokens = Tokens("gpt2", find_pretokenizer(files.tokenizer or {}, where), size, merges=read_merges(files))
    for text, id in files.entries(size).items():
        tokens.put(id, text, TokenType.NORMAL)
    tokens.put_added(files.listed_tokens())
    tokens.add_space_prefix = files.space_prefix()
    return tokens


def read_merges(files: TokenizerFiles) -> list[str]:
    """The merges, each as two texts with a blank between (blanks inside the texts encoded)."""
    merges = files.model.get("merges")
    if isinstance(merges, list) and merges:
        if all(isinstance(merge, str) for merge in merges):
            return merges
        if all(isinstance(merge, list) and [type(part) for part in merge] == [str, str] for merge in merges):
            return [" ".join(part.replace(" ", ENCODED_SPACE) for part in merge) for merge in merges]
    raise MedusaError(f"{files.where(TOKENIZER)}: its merges are not a list of pairs, download it again")


def _mentions_byte_level(tokenizer: dict[str, Any] | None) -> bool:
    """Whether the pre-tokenizer or the decoder works on bytes."""
    for key, parts in (("pre_tokenizer", "pretokenizers"), ("decoder", "decoders")):
        step = (tokenizer or {}).get(key)
        if isinstance(step, dict):
            steps = step.get(parts, [step])
            if isinstance(steps, list) and any(isinstance(s, dict) and s.get("type") == "ByteLevel" for s in steps):
                return True
    return False
