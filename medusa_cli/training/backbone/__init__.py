"""The base's own layers in torch, loaded from its GGUF, and what joint training changes in them."""
