"""Quantized caches: drafted text is plain text, and our attention reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from medusa_cli import native

KERNELS = native.kernel_info()["selected"] is not None
TEXT = "Write a story about a fox, a crow and a piece of cheese. The fox"


@pytest.mark.model
@pytest.mark.skipif(not KERNELS, reason="llama.cpp's own attention depends on the width")
@pytest.mark.parametrize("types", [("q8_0", "q8_0"), ("q4_0", "q4_0"), ("q8_0", "f16")])
def test_drafts_change_no_text(types: tuple[str, str], demo_model_path: Path) -> None:
    demo_model = native.Model(str(demo_model_path), n_gpu_layers=0)
    prompt = demo_model.tokenize(TEXT)
    key, value = types
    plain = native.Session(demo_model, type_k=key, type_v=value).generate(prompt, max_tokens=60, ignore_eos=True)
    session = native.Session(demo_model, type_k=key, type_v=value, lookup=True, recycling=True)
    drafted = session.generate(prompt, max_tokens=60, ignore_eos=True)
    assert drafted.tokens == plain.tokens
    assert any(len(parents) > 1 for parents in drafted.parents)
