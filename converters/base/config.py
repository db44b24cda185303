"""Typed access to a config.json: missing and null keys fall back to a default, everything else is checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeGuard

from ..errors import MedusaError

MAX_LAYERS = 1024
MAX_SIZE = 1 << 24
MAX_F32 = (2 - 2**-23) * 2.0**127


class Config:
    """The values of one config.json. `where` names the file in messages, `defaults` are the architecture's own."""

    def __init__(self, values: Mapping[str, Any], where: str, defaults: Mapping[str, Any]) -> None:
        self.values, self.where, self.defaults = values, where, defaults

    def get(self, key: str) -> Any:
        """The value; the default if the key is missing or null; None if there is no default."""
        value = self.values.get(key)
        return self.defaults.get(key) if value is None else value

    def refuse(self, key: str, wanted: str) -> MedusaError:
        """The error for a value that cannot be right."""
        return MedusaError(f"{self.where}: {key} is {repr(self.get(key))[:60]}, expected {wanted}: repair the file")

    def integer(self, key: str, low: int = 1, high: int = MAX_SIZE) -> int:
        """A whole number in low..high."""
        value = self.get(key)
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise self.refuse(key, f"a whole number from {low} to {high}")
        return value

    def number(self, key: str, low: float = 0.0) -> float:
        """A finite number above `low`."""
        value = self.get(key)
        if not is_number(value) or not value > low:
            raise self.refuse(key, f"a number above {low:g}")
        return float(value)

    def flag(self, key: str) -> bool:
        """A boolean; False if there is neither a value nor a default."""
        value = self.get(key)
        if value is not None and not isinstance(value, bool):
            raise self.refuse(key, "true or false")
        return bool(value)

    def section(self, key: str) -> dict[str, Any]:
        """An object; empty when the key is absent or null."""
        value = self.get(key)
        if value is not None and not isinstance(value, dict):
            raise self.refuse(key, "an object")
        return dict(value or {})

    def token_id(self, key: str) -> int | None:
        """A token id. None when it is absent, negative or a list of several ids (the first says nothing certain)."""
        value = self.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def is_number(value: Any) -> TypeGuard[int | float]:
    """True for ints and floats, other than booleans, in the range of F32, in which GGUF keeps them."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -MAX_F32 <= value <= MAX_F32
