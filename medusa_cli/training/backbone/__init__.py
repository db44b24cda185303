"""The base's own layers in torch, from its GGUF, and what joint training changes in them."""
