"""JSON objects from untrusted files."""

from __future__ import annotations

import json
from typing import Any

from ..errors import MedusaError


def parse_json(text: bytes | str, label: str) -> dict[str, Any]:
    """The object in `text` (bytes: UTF-8).

    MedusaError, starting with `label`, for anything else: broken or too deep JSON, absurdly long numbers, a key that
    appears twice in one object, strings that are not Unicode text.
    """

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise MedusaError(f"{label}: key {key!r} appears twice, the file is damaged")
            found[key] = value
        return found

    try:
        value = json.loads(text.decode() if isinstance(text, bytes) else text, object_pairs_hook=unique)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError:
        raise MedusaError(f"{label}: nested too deeply, the file is damaged or hostile") from None
    except ValueError as error:
        raise MedusaError(f"{label}: not valid JSON ({type(error).__name__}), download the file again") from None
    if not isinstance(value, dict):
        raise MedusaError(f"{label}: not a JSON object, the file is damaged")
    return value
