"""The release of llama-cpp-python that medusa is made for, and the one that is installed."""

from __future__ import annotations

from importlib import metadata

LLAMA_CPP_PYTHON_PIN = "0.3.36"


def installed_llama_cpp_python() -> str | None:
    """Version of the installed llama-cpp-python distribution, None if there is none."""
    try:
        return metadata.version("llama-cpp-python")
    except metadata.PackageNotFoundError:
        return None
