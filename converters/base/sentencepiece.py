"""SentencePiece vocabularies: tokenizer.model itself, or a tokenizer.json that was made from one.

sentencepiece gives pieces and scores. Two settings of the file that it does not give are read from the bytes here,
since its own way to get them needs the protobuf package.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar

from gguf import TokenType

from ..errors import MedusaError
from .tokenizer_files import PADDING_SCORE, TOKENIZER, TokenizerFiles, Tokens

MODEL_FILE = "tokenizer.model"
BLANK = "▁"
BYTE = re.compile(r"<0x[0-9A-F]{2}>")

# Field numbers of sentencepiece_model.proto, and the model type that is merged by scores as libllama does it.
TRAINER, NORMALIZER, MODEL_TYPE, DUMMY_PREFIX = 2, 3, 3, 3
UNIGRAM, BPE = 1, 2
Value = TypeVar("Value", int, bytes)


def read_sentencepiece(files: TokenizerFiles, size: int) -> Tokens:
    """The pieces of tokenizer.model with the added tokens of the JSON files over them.

    MedusaError if the file is damaged, not a BPE model, or larger than the embedding.
    """
    from sentencepiece import SentencePieceProcessor

    path, where = files.checkpoint.path(MODEL_FILE), files.where(MODEL_FILE)
    processor = SentencePieceProcessor()
    try:
        processor.LoadFromFile(str(path))
        proto = processor.serialized_model_proto()
    except (OSError, RuntimeError, ValueError) as error:
        raise MedusaError(f"{where}: not a SentencePiece model, download it again") from error
    if _field(_field(proto, TRAINER, b""), MODEL_TYPE, UNIGRAM) != BPE:
        raise MedusaError(f"{where}: not a BPE model, and libllama reads no other kind: give a GGUF as the base")
    count = processor.GetPieceSize()
    if count > size:
        raise MedusaError(
            f"{where}: holds {count} pieces, but the model has {size} tokens: they do not belong together"
        )
    tokens = Tokens("llama", "default", size, scores=[PADDING_SCORE] * size)
    for id in range(count):
        tokens.put(id, processor.IdToPiece(id), _piece_kind(processor, id), processor.GetScore(id))
    # Later files override earlier ones; if several list a token, they agree in all checkpoints that work.
    for added in (files.extra_tokens(), files.listed_tokens(), files.decoder_tokens()):
        tokens.put_added(added, space=BLANK)
    tokens.add_space_prefix = files.space_prefix()
    if tokens.add_space_prefix is None and not _field(_field(proto, NORMALIZER, b""), DUMMY_PREFIX, 1):
        tokens.add_space_prefix = False
    return tokens


def read_byte_fallback(files: TokenizerFiles, size: int) -> Tokens:
    """The vocabulary of a tokenizer.json with byte fallback; the merges give the scores.

    libllama merges the neighbours whose union has the best score, tokenizers the pair with the lowest rank: if a
    token's negative score is the rank of the first merge that makes it, both take the same steps.
    """
    where, model = files.where(TOKENIZER), files.model
    if model.get("type") != "BPE" or not model.get("byte_fallback"):
        raise MedusaError(f"{where}: a {str(model.get('type'))[:20]} tokenizer of a kind that libllama lacks")
    prefix = _space_prefix(files.tokenizer or {}, where)
    tokens = Tokens("llama", "default", size, scores=[PADDING_SCORE] * size, add_space_prefix=prefix)
    ranks = _merge_ranks(model, where)
    for text, id in files.entries(size).items():
        kind = TokenType.BYTE if BYTE.fullmatch(text) else TokenType.NORMAL
        kind = TokenType.UNKNOWN if text == model.get("unk_token") else kind
        tokens.put(id, text, kind, -float(ranks.get(text, 0)))
    tokens.put_added(files.listed_tokens(), space=BLANK)
    return tokens


def _piece_kind(processor: Any, id: int) -> TokenType:
    if processor.IsUnknown(id):
        return TokenType.UNKNOWN
    if processor.IsControl(id):
        return TokenType.CONTROL
    if processor.IsUnused(id):
        return TokenType.UNUSED
    return TokenType.BYTE if processor.IsByte(id) else TokenType.NORMAL


def _merge_ranks(model: dict[str, Any], where: str) -> dict[str, int]:
    """Token -> number, from 1, of the first merge that makes it."""
    ranks: dict[str, int] = {}
    merges = model.get("merges")
    for number, merge in enumerate(merges if isinstance(merges, list) else [None], 1):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or [type(part) for part in parts] != [str, str]:
            raise MedusaError(f"{where}: its merges are not a list of pairs, download it again")
        ranks.setdefault(parts[0] + parts[1], number)
    return ranks


def _space_prefix(tokenizer: dict[str, Any], where: str) -> bool:
    """Whether a blank goes before the text. MedusaError for steps that libllama's tokenizer lacks."""
    prefix = False
    for step in _steps(tokenizer.get("normalizer"), "normalizers"):
        blank_for_space = step.get("pattern") == {"String": " "} and step.get("content") == BLANK
        if step.get("type") == "Prepend" and step.get("prepend") == BLANK:
            prefix = True
        elif step.get("type") != "Replace" or not blank_for_space:
            raise MedusaError(f"{where}: libllama has no normalizer like {repr(step)[:60]}: give a GGUF as the base")
    for step in _steps(tokenizer.get("pre_tokenizer"), "pretokenizers"):
        if step.get("type") == "Metaspace" and step.get("replacement") == BLANK:
            scheme = step.get("prepend_scheme", "always" if step.get("add_prefix_space", True) else "never")
            prefix = prefix or scheme != "never"
        elif step.get("type") != "Split" or step.get("pattern") != {"String": " "}:
            raise MedusaError(f"{where}: libllama has no pre-tokenizer like {repr(step)[:60]}: give a GGUF as the base")
    return prefix


def _steps(step: Any, parts: str) -> list[dict[str, Any]]:
    if step is None:
        return []
    steps = step.get(parts, [step]) if isinstance(step, dict) else [step]
    return [part if isinstance(part, dict) else {"type": part} for part in steps]


def _field(data: bytes, number: int, default: Value) -> Value:
    """The last value (a number, or the bytes of a sub-message) in a field of a protocol-buffer message.

    sentencepiece has parsed the message before.
    """
    at, found = 0, default
    while at < len(data):
        tag, at = _varint(data, at)
        value: int | bytes
        if tag & 7 == 0:
            value, at = _varint(data, at)
        else:
            size, at = {1: (8, at), 5: (4, at)}.get(tag & 7) or _varint(data, at)
            value, at = data[at : at + size], at + size
        if tag >> 3 == number and isinstance(value, type(default)):
            found = value
    return found


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
