"""Arguments that are written one after the other, as they come: the JSON object that they make, before it is whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from medusa_cli.parts.call_formats import Notation


class ParameterObject:
    """Reads the arguments of one call. text: the object so far, without its last bracket."""

    done = False
    """Its end shows when the format's reader has read the whole call."""

    def __init__(self, notation: Notation, schema: Mapping[str, Any]) -> None:
        self._notation, self._schema = notation, schema
        self._held = ""
        self._pairs: list[tuple[str, Any]] = []
        self.text = ""

    def feed(self, text: str) -> tuple[str, str]:
        """What is certain after a further piece, and "". ValueError: JSON has no such value."""
        self._held += text
        before = len(self.text)
        self.text = self.text or "{"
        while self._notation.closes in self._held:
            found = self._notation.pair.search(self._held)
            end = self._held.find(self._notation.end)
            if found is None or 0 <= end < found.end():
                break
            self._held = self._held[found.end() :]
            pair = found[1], self._notation.value(found[2], self._schema, found[1])
            self.text += self._written(*pair)
            self._pairs.append(pair)
        return self.text[before:], ""

    def _written(self, key: str, value: Any) -> str:
        text = json.dumps({key: value}, ensure_ascii=False, allow_nan=False)[1:-1]
        text.encode("utf-8")
        return (", " if self._pairs else "") + text

    def rest_of(self, arguments: Mapping[str, Any]) -> str | None:
        """What is left to tell of these; None: they are not those that were told."""
        before, known, pairs = len(self.text), len(self._pairs), list(arguments.items())
        if pairs[:known] != self._pairs:
            return None
        for pair in pairs[known:]:
            self.text += self._written(*pair)
            self._pairs.append(pair)
        self.text += "}"
        return self.text[before:]
