"""The native engine, loaded in the one order that works.

llama_cpp goes first: it loads libllama from its own folder, and our module then finds those libraries already in the
process. The other way round the process would hold two copies of libllama. The version is checked before anything
native runs, because the engine relies on struct layouts of exactly that release. Last comes the backend that the
environment names, so that whoever imports this module sees its devices.
"""

import os
from pathlib import Path

from medusa_cli.support.errors import MedusaError, does_not_load, worded
from medusa_cli.support.versions import LLAMA_CPP_PYTHON_PIN, installed_llama_cpp_python

BACKEND_VARIABLE = "GGML_BACKEND_PATH"
"""ggml's own name for a backend module; ggml itself reads it only where no backend is built in."""
LIBRARY_VARIABLE = "LLAMA_CPP_LIB_PATH"
"""llama-cpp-python's own name for another folder of its libraries."""


def _check_versions() -> None:
    found = installed_llama_cpp_python()
    if found != LLAMA_CPP_PYTHON_PIN:
        raise MedusaError(
            f"llama-cpp-python {LLAMA_CPP_PYTHON_PIN} is needed, found {found or 'none'}: "
            f"run `pip install llama-cpp-python=={LLAMA_CPP_PYTHON_PIN}`"
        )


def module_file() -> Path:
    """The compiled module's file."""
    from medusa_cli import _native

    return Path(str(_native.__file__))


def _check_libraries() -> None:
    """MedusaError unless libllama and ggml are the ones that llama_cpp has loaded, of the pinned release."""
    folder = Path(llama_cpp.llama_cpp._lib._name).parent.resolve()
    for file in filter(None, library_files()):  # noqa: F405
        other = Path(file).parent.resolve()
        if other != folder:
            raise MedusaError(
                f"the libraries of llama.cpp come from two folders, {folder} and {other}: "
                f"unset LD_LIBRARY_PATH, LD_PRELOAD and {LIBRARY_VARIABLE}"
            )
    if ggml_version() != GGML_VERSION:
        raise MedusaError(
            f"the libraries in {folder} are not those of llama-cpp-python {LLAMA_CPP_PYTHON_PIN} "
            f"(ggml {ggml_version()}, not {GGML_VERSION}): {_reinstall()}"
        )


def _reinstall() -> str:
    command = f"run `pip install --force-reinstall llama-cpp-python=={LLAMA_CPP_PYTHON_PIN}`"
    return f"unset {LIBRARY_VARIABLE}" if os.environ.get(LIBRARY_VARIABLE) else command


_check_versions()
try:
    import llama_cpp
except (ImportError, OSError, RuntimeError) as error:
    raise does_not_load("llama-cpp-python does not load", error, _reinstall()) from error
try:
    from medusa_cli._native import *  # noqa: F403
    from medusa_cli._native import GGML_VERSION, LLAMA_CPP_PYTHON, ggml_version
except ImportError as error:
    raise does_not_load("the native module does not load", error, "reinstall medusa-cli") from error
if LLAMA_CPP_PYTHON != LLAMA_CPP_PYTHON_PIN:
    raise MedusaError(
        f"the native module was built for llama-cpp-python {LLAMA_CPP_PYTHON}, this is {LLAMA_CPP_PYTHON_PIN}: "
        "reinstall medusa-cli"
    )
_check_libraries()
NativeError.__str__ = worded  # type: ignore[method-assign] # noqa: F405
if _backend := os.environ.get(BACKEND_VARIABLE):
    load_backend(_backend)  # noqa: F405
