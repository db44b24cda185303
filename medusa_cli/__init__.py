"""medusa: run any llama.cpp model faster by letting it draft its own next tokens."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "Acceleration": "api.acceleration",
    "Answer": "api.answer",
    "AsyncStream": "api.stream",
    "Embedder": "api.embedder",
    "MedusaError": "support.errors",
    "Model": "api.model",
    "Piece": "api.answer",
    "Session": "api.session",
    "Stream": "api.stream",
    "TokenChance": "api.answer",
    "accelerate": "api.acceleration",
}
"""Of each name, the module that is loaded when it is first used: commands start quickly. Types: __init__.pyi."""

__all__ = sorted([*_PUBLIC, "__version__"])


def __getattr__(name: str) -> Any:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_PUBLIC[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
