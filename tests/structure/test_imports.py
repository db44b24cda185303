"""What the compiled module takes from llama.cpp: C functions, so that one wheel fits every build of its release."""

import shutil
import subprocess
import sys

import pytest

from medusa_cli import native

STAGING = {
    "llama_get_embeddings_nextn_ith(llama_context*, int)",
    "llama_set_embeddings_nextn(llama_context*, bool, bool)",
    "llama_set_nextn_layer_offset(llama_context*, int)",
}


@pytest.mark.skipif(sys.platform != "linux" or not shutil.which("nm"), reason="reads ELF with nm")
def test_no_other_cpp_function_of_llama_cpp_is_imported() -> None:
    command = ["nm", "-D", "-C", "--undefined-only", str(native.module_file())]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    names = [line.strip().split(" ", 1)[1] for line in lines]
    ours = {
        name for name in names if name.startswith(("llama_", "ggml", "gguf_", "typeinfo for ggml", "vtable for ggml"))
    }
    assert {name for name in ours if "(" in name or ":" in name} == STAGING
    assert len(ours) > 100  # the C functions, so the listing was read
