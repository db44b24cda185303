"""Tokenizer files of a checkpoint -> GGUF's tokenizer metadata: tokens, special ones, the chat template."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import gguf
from gguf import TokenType

from ..checkpoints.checkpoint import Checkpoint
from ..errors import MedusaError
from .config import Config
from .pretokenizers import find_pretokenizer
from .sentencepiece import MODEL_FILE, read_byte_fallback, read_sentencepiece
from .tokenizer_files import TOKENIZER, TOKENIZER_CONFIG, TokenizerFiles, Tokens

ENCODED_SPACE = "Ġ"
KINDS = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
WRITTEN_KINDS = ("bos", "eos", "unk", "sep", "pad", "mask", "eot")
TEMPLATE_FILE, TEMPLATE_JSON = "chat_template.jinja", "chat_template.json"


@dataclass
class SpecialTokens:
    """ids: "bos", "eos", "eot", ... -> token id. adds: "bos", "eos", "sep" -> whether the tokenizer adds it."""

    ids: dict[str, int] = field(default_factory=dict)
    adds: dict[str, bool] = field(default_factory=dict)
    chat_template: str | list[dict[str, str]] | None = None

    def write(self, writer: gguf.GGUFWriter) -> None:
        """The tokenizer.ggml.*_token_id and add_*_token keys and the template."""
        for kind in WRITTEN_KINDS:
            if kind in self.ids:
                getattr(writer, f"add_{kind}_token_id")(self.ids[kind])
        for kind, adds in self.adds.items():
            writer.add_bool(f"tokenizer.ggml.add_{kind}_token", adds)
        if self.chat_template is not None:
            writer.add_chat_template(self.chat_template)


@dataclass(frozen=True)
class Vocabulary:
    """Everything under tokenizer.* in a GGUF. strips_right: its special tokens swallow white space after them."""

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
    MedusaError if there is no tokenizer that libllama can reproduce.
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
        # tokenizer.json says everything that is added; where it says nothing, libllama's default may differ.
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
    """Tokens and merges. MedusaError if they are damaged, too many, or need an unknown pre-tokenizer."""
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


# --- special tokens --------------------------------------------------------------------------------
# gguf-py's SpecialVocab reads the same files, but its reading of a post-processor changed between releases, and it
# opens files without the checkpoint's checks; so the rules are written out here.


def read_special_tokens(files: TokenizerFiles, config: Config, vocabulary: int) -> SpecialTokens:
    """Ids: by name if the tokenizer's files name them, else config.json's; without those outside the vocabulary."""
    names = {kind: name for kind in KINDS if (name := _token_name(files, kind))}
    special = SpecialTokens(chat_template=_chat_template(files))
    for processor in _processors(files):
        if processor.get("type") == "ByteLevel":
            special.adds.setdefault("bos", False)
            special.adds.setdefault("eos", False)
        elif processor.get("type") == "TemplateProcessing":
            _apply_template(processor, names, special.adds)
    for kind in ("bos", "eos", "sep"):
        flag = files.config.get(f"add_{kind}_token")
        if isinstance(flag, bool):
            special.adds.setdefault(kind, flag)
    named = {token.text: token.id for token in reversed(files.listed_tokens())}
    if files.tokenizer is None:
        # With a bare tokenizer.model, only the ends are taken by name: the rest is in config.json or not needed.
        texts = {token.text: token.id for token in files.decoder_tokens()}
        named = {names[kind]: texts[names[kind]] for kind in ("bos", "eos") if names.get(kind) in texts}
    for kind in (*KINDS, "eot"):
        by_name = named.get(names.get(kind, ""))
        id = config.token_id(f"{kind}_token_id") if by_name is None else by_name
        if id is not None and id < vocabulary:
            special.ids[kind] = id
    return special


def _token_name(files: TokenizerFiles, kind: str) -> str | None:
    entry = files.config.get(f"{kind}_token")
    content = entry.get("content") if isinstance(entry, dict) else entry
    return content if isinstance(content, str) and content else None


def _processors(files: TokenizerFiles) -> Iterator[dict[str, Any]]:
    """The post-processor's steps."""
    processor = (files.tokenizer or {}).get("post_processor")
    if isinstance(processor, dict):
        steps = processor.get("processors", [processor])
        yield from (step for step in steps if isinstance(step, dict)) if isinstance(steps, list) else ()


def _apply_template(processor: dict[str, Any], names: dict[str, str], adds: dict[str, bool]) -> None:
    """What a TemplateProcessing step adds around one text, and between two."""
    single, pair = _template(processor.get("single")), _template(processor.get("pair"))
    first = last = None
    if len(single) > 1:
        first, last = single[0][0], single[-1][0]
        if first is not None:
            names.setdefault("bos", first)
            adds["bos"] = first in (names["bos"], names.get("cls"))
        if last is not None:
            if names.get("eos", last) != last:
                names["eot"] = names["eos"]
            names["eos"] = last
            adds["eos"] = True
    start = 1 if first is not None and pair and pair[0][0] == first else 0
    stop = len(pair) - (1 if last is not None and pair and pair[-1][0] == last else 0)
    inner = pair[start:stop]
    if len(inner) > 2 and (inner[0][1], inner[-1][1]) == ("A", "B"):
        adds["sep"] = last is None and inner[1][0] in (names.get("sep"), names.get("eos"))


def _template(value: Any) -> list[tuple[str | None, str | None]]:
    """The pieces of a template as (special token, None) or (None, sequence)."""

    def id(piece: Any, kind: str) -> str | None:
        entry = piece.get(kind) if isinstance(piece, dict) else None
        name = entry.get("id") if isinstance(entry, dict) else None
        return name if isinstance(name, str) else None

    pieces = value if isinstance(value, list) else []
    return [(id(piece, "SpecialToken"), id(piece, "Sequence")) for piece in pieces]


def _chat_template(files: TokenizerFiles) -> str | list[dict[str, str]] | None:
    """The template of tokenizer_config.json, else of the files beside it."""
    template, where = files.config.get("chat_template"), files.where(TOKENIZER_CONFIG)
    if template is None:
        template = files.checkpoint.read_text(TEMPLATE_FILE)
    if template is None:
        template, where = (files.checkpoint.read_json(TEMPLATE_JSON) or {}).get("chat_template"), TEMPLATE_JSON
    if template is None or isinstance(template, str):
        return template
    named = isinstance(template, list) and all(
        isinstance(entry, dict) and isinstance(entry.get("name"), str) and isinstance(entry.get("template"), str)
        for entry in template
    )
    if not named:
        raise MedusaError(f"{where}: chat_template is neither a text nor a list of named texts, repair the file")
    return template
