"""What other Python programs import: models that answer, and our kernels for llama_cpp.Llama (docs/python.md)."""
