"""Drafters that libllama runs as models of their own, made from Hugging Face checkpoints."""

from .eagle3 import Eagle3, is_eagle3, stated_target
from .target import Target, read_checkpoint_target, read_gguf_target

__all__ = ["Eagle3", "Target", "is_eagle3", "read_checkpoint_target", "read_gguf_target", "stated_target"]
