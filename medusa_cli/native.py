"""The native engine, loaded in the one order that works.

llama_cpp goes first: it loads libllama from its own folder, and our module then finds those libraries already in the
process. The other way round the process would hold two copies of libllama. The version is checked before anything
native runs, because the engine relies on struct layouts of exactly that release. Last comes the backend that the
environment names, so that whoever imports this module sees its devices.
"""

import os
from pathlib import Path

from medusa_cli.support.errors import MedusaError, worded
from medusa_cli.support.versions import LLAMA_CPP_PYTHON_PIN, installed_llama_cpp_python

BACKEND_VARIABLE = "GGML_BACKEND_PATH"
"""ggml's own name for a backend module; ggml itself reads it only where no backend is built in."""


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


_check_versions()
try:
    import llama_cpp  # noqa: F401
except (ImportError, OSError, RuntimeError) as error:
    raise MedusaError(f"llama-cpp-python does not load ({error}): reinstall it") from error
try:
    from medusa_cli._native import *  # noqa: F403
    from medusa_cli._native import LLAMA_CPP_PYTHON
except ImportError as error:
    raise MedusaError(f"the native module does not load ({error}): reinstall medusa-cli") from error
if LLAMA_CPP_PYTHON != LLAMA_CPP_PYTHON_PIN:
    raise MedusaError(
        f"the native module was built for llama-cpp-python {LLAMA_CPP_PYTHON}, this is {LLAMA_CPP_PYTHON_PIN}: "
        "reinstall medusa-cli"
    )
NativeError.__str__ = worded  # type: ignore[method-assign] # noqa: F405
if _backend := os.environ.get(BACKEND_VARIABLE):
    load_backend(_backend)  # noqa: F405
