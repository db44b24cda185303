"""What an answer may look like, as it was asked for: a JSON schema or a grammar, and the engine's grammar for it."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from medusa_cli.grammars import schema
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.files import read_text

if TYPE_CHECKING:
    from medusa_cli import native

NAMES = ("json_schema", "grammar")
"""The options, of which an answer can have one."""


def read(name: str, text: str) -> str:
    """What a command line or `/set` gives: the name of a file, or a JSON schema itself. MedusaError: no such file."""
    is_schema = name == NAMES[0] and (text.lstrip()[:1] in ("{", "") or text.strip() in ("true", "false"))
    return text if is_schema else read_text(Path(text))


def schema_text(value: Any) -> str:
    """A JSON schema as Python's keywords take it: JSON, an object, or a pydantic model. MedusaError for others."""
    if isinstance(value, str):
        return value
    if hasattr(value, "model_json_schema"):
        value = value.model_json_schema()
    if not isinstance(value, (Mapping, bool)):
        raise MedusaError(
            f"json_schema takes a schema as JSON or as an object, or a pydantic model, not {type(value).__name__}"
        )
    try:
        return json.dumps(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise MedusaError(f"json_schema is not JSON: {error}") from error


@functools.lru_cache(maxsize=32)
def gbnf_of(json_schema: str) -> str:
    """The grammar of a JSON schema. MedusaError, one line, for what is none or cannot be enforced."""
    try:
        found = json.loads(json_schema)
    except (ValueError, RecursionError) as error:
        raise MedusaError(f"the JSON schema is not JSON: {error}") from error
    return schema.grammar_of(found)


@functools.lru_cache(maxsize=32)
def compiled(gbnf: str) -> native.Grammar:
    """The engine's grammar. NativeError or MedusaError, one line, for what is none."""
    from medusa_cli import native

    try:
        gbnf.encode()
    except UnicodeEncodeError as error:
        raise MedusaError("the grammar or JSON schema holds half of a surrogate pair, which is no text") from error
    return native.Grammar(gbnf)


def grammar(json_schema: str | None, gbnf: str | None) -> native.Grammar | None:
    """What an answer follows; None: nothing."""
    if json_schema is not None:
        gbnf = gbnf_of(json_schema)
    return None if gbnf is None else compiled(gbnf)
