"""Base models from Hugging Face checkpoints to unquantized GGUF."""

from .registry import ARCHITECTURES
from .write import write_base

__all__ = ["ARCHITECTURES", "write_base"]
