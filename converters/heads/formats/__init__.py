"""Draft heads of every published checkpoint layout, under our own tensor names.

`read_heads` tells the layouts apart by their tensors, whatever the configuration says, and returns tensors that are
loaded one at a time. Nothing is written here.
"""

from .model import HeadTensor, SourceHeads
from .read import base_tensor_filter, read_heads

__all__ = ["HeadTensor", "SourceHeads", "base_tensor_filter", "read_heads"]
