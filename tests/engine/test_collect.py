"""native.collect: several texts at a time are what each prompt gives alone, where attention is our own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import _native_testing as testing
import numpy as np
import pytest
from fixtures import tiny_base
from numpy.typing import NDArray

from medusa_cli import native
from medusa_cli.conversion.quantize import quantize
from medusa_cli.prompts.seeds.data import PASSAGES

Texts = dict[int, tuple[list[int], NDArray[np.uint16]]]
"""Prompt -> its tokens and the bits of the hidden states they were drawn from."""

pytestmark = pytest.mark.skipif(
    native.kernel_info()["selected"] not in testing.attention_names(),
    reason="llama.cpp's kernels run on this processor or platform: their bits depend on how many sequences there are",
)


def collected(model: native.Model, prompts: Sequence[Sequence[int]], max_tokens: int, n_parallel: int) -> Texts:
    texts: Texts = {}

    def keep(index: int, tokens: list[int], states: NDArray[np.float16] | None) -> None:
        assert states is not None
        texts[index] = tokens, states.view(np.uint16)

    native.collect(model, prompts, [0.0] * len(prompts), max_tokens=max_tokens, n_parallel=n_parallel, on_sequence=keep)
    return texts


def check(model: native.Model, prompts: list[list[int]], max_tokens: int) -> Texts:
    together = collected(model, prompts, max_tokens, n_parallel=4)
    assert sorted(together) == list(range(len(prompts)))
    for index, prompt in enumerate(prompts):
        [(tokens, states)] = collected(model, [prompt], max_tokens, n_parallel=1).values()
        assert together[index][0] == tokens
        np.testing.assert_array_equal(together[index][1], states)
    return together


def test_a_small_model_with_prompts_that_share_a_cache_slot(tmp_path: Path) -> None:
    """Six prompts in four slots: those that end early make room, and the widths change all the time."""
    quantize(tiny_base(tmp_path / "base.gguf"), tmp_path / "model.gguf", "Q4_0")
    random = np.random.default_rng(0)
    prompts = [random.integers(3, 320, length).tolist() for length in (1, 40, 7, 90, 2, 13)]
    texts = check(native.Model(str(tmp_path / "model.gguf")), prompts, max_tokens=80)
    assert any(len(tokens) > 40 for tokens, _ in texts.values())


def test_prompts_that_begin_alike(tmp_path: Path) -> None:
    """Their beginning stays in the cache from one prompt to the next, and a prompt may be that beginning alone."""
    quantize(tiny_base(tmp_path / "base.gguf"), tmp_path / "model.gguf", "Q4_0")
    random = np.random.default_rng(1)
    start = random.integers(3, 320, 21).tolist()
    prompts = [start + random.integers(3, 320, length).tolist() for length in (1, 40, 7, 0, 90, 2, 13, 30, 5, 3)]
    check(native.Model(str(tmp_path / "model.gguf")), prompts, max_tokens=60)


@pytest.mark.model
def test_the_demo_model(demo_model_path: Path) -> None:
    model = native.Model(str(demo_model_path))
    prompts = [model.tokenize(passage)[: 20 + 30 * i] for i, passage in enumerate(PASSAGES[:5])]
    texts = check(model, prompts, max_tokens=40)
    assert len({tuple(tokens) for tokens, _ in texts.values()}) == len(prompts)


def test_what_is_under_way_is_handed_over(tmp_path: Path) -> None:
    """When on_progress says so; the beginnings are those of whole texts."""
    model = native.Model(str(tiny_base(tmp_path / "base.gguf")))
    prompts = [[5, 6, 7], [9, 40], [200, 3, 8, 11]]
    whole = collected(model, prompts, 60, n_parallel=3)
    cut: Texts = {}

    def keep(index: int, tokens: list[int], states: NDArray[np.float16] | None) -> None:
        assert states is not None
        cut[index] = tokens, states.view(np.uint16)

    native.collect(
        model, prompts, [0.0] * 3, max_tokens=60, n_parallel=3, on_sequence=keep, on_progress=lambda total: total < 30
    )
    assert sorted(cut) == [0, 1, 2]
    assert sum(len(tokens) for tokens, _ in cut.values()) == 30
    for index, (tokens, states) in cut.items():
        assert tokens == whole[index][0][: len(tokens)]
        np.testing.assert_array_equal(states, whole[index][1][: len(tokens)])


def test_an_error_hands_nothing_over(tmp_path: Path) -> None:
    model, got = native.Model(str(tiny_base(tmp_path / "base.gguf"))), []

    def fails(total: int) -> bool:
        raise KeyError(total)

    with pytest.raises(KeyError):
        native.collect(
            model, [[5, 6]], [0.0], max_tokens=60, on_sequence=lambda *given: got.append(given), on_progress=fails
        )
    assert got == []
