"""Beginning and end tokens, whether they are added by themselves, and the chat template.

gguf-py's SpecialVocab reads the same files, but what it makes of a post-processor changed between its releases, and it
opens files past the checkpoint's checks; so the rules are written out here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import gguf

from ..errors import MedusaError
from .config import Config
from .tokenizer_files import TOKENIZER_CONFIG, TokenizerFiles

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


def read_special_tokens(files: TokenizerFiles, config: Config, vocabulary: int) -> SpecialTokens:
    """Ids: by name where the tokenizer's files name them, else config.json's; those outside the vocabulary go."""
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
        # Beside a bare tokenizer.model only the ends are taken by name: the rest is in config.json or not needed.
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
