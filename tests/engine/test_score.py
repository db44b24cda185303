"""testing.score, and with it whole models on our kernels against the stock ones."""

from __future__ import annotations

import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path

import _native_testing as testing
import numpy as np
import pytest
from fixtures import tiny_base

from medusa_cli import native
from medusa_cli.prompts.seeds.data import PASSAGES

TEXT = [1, 5, 9, 17, 200, 44, 31, 260, 7, 7, 99]


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> native.Model:
    return native.Model(str(tiny_base(tmp_path_factory.mktemp("base") / "base.gguf")))


@pytest.mark.parametrize("width", [1, 3, 64, 500])
def test_costs_and_best_tokens_are_those_of_the_logits(tiny: native.Model, width: int) -> None:
    best, costs = testing.score(tiny, TEXT, width=width)
    # A real GPU rounds otherwise in passes of another width.
    tolerance = 1e-4 if tiny.backend in ("CPU", "PRETENDED") else 5e-3
    assert (len(best), len(costs)) == (len(TEXT), len(TEXT) - 1)
    for i in range(len(TEXT)):
        [wanted], logits = testing.teacher_forced(tiny, TEXT[: i + 1], prompt_length=i + 1)
        assert best[i] == wanted
        if i < len(costs):
            values = np.asarray(logits, np.float64)
            assert costs[i] == pytest.approx(np.log(np.exp(values).sum()) - values[TEXT[i + 1]], abs=tolerance)


@pytest.mark.parametrize(
    ("tokens", "width", "message"),
    [
        ([], 1, "no tokens"),
        ([1, 320], 1, "token 320"),
        ([-1], 1, "token -1"),
        ([1, 2], 0, "width"),
        ([1] * 600, 513, "1..512"),
    ],
)
def test_nonsense_is_refused(tiny: native.Model, tokens: list[int], width: int, message: str) -> None:
    with pytest.raises(native.NativeError, match=message):
        testing.score(tiny, tokens, width=width)


SCORE = (
    "import json, sys; import _native_testing as testing; from medusa_cli import native\n"
    "model = native.Model(sys.argv[1], n_gpu_layers=0)\n"
    "text = model.tokenize(sys.stdin.read())\n"
    "runs = [testing.score(model, text[:count], width=width)[1] for count, width in ((512, 64), (64, 1))]\n"
    "print(json.dumps([native.kernel_info()['selected'], runs]))"
)


def costs(model: Path, isa: str | None) -> tuple[str | None, list[list[float]]]:
    """The selected kernels and the token costs, 64 wide and one by one, in a process with this MEDUSA_ISA."""
    environment = {name: value for name, value in os.environ.items() if name != "MEDUSA_ISA"}
    environment.update({} if isa is None else {"MEDUSA_ISA": isa})
    # Elsewhere than in the checkout, whose package has no compiled module.
    result = subprocess.run(
        [sys.executable, "-c", SCORE, str(model)],
        cwd=model.parent, input="\n\n".join(PASSAGES), env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    selected, runs = json.loads(result.stdout)
    return selected, runs


@pytest.mark.slow
@pytest.mark.model
def test_the_demo_models_perplexity_is_that_of_stock_kernels(demo_model_path: Path) -> None:
    selected, ours = costs(demo_model_path, None)
    if selected is None:
        pytest.skip("this processor runs the stock kernels")
    _, stock = costs(demo_model_path, "off")
    for mine, theirs in zip(ours, stock, strict=True):
        assert mine != theirs, "the same kernels ran twice"
        changes = [a - b for a, b in zip(mine, theirs, strict=True)]
        error = statistics.stdev(changes) / math.sqrt(len(changes))
        assert abs(math.expm1(statistics.fmean(changes))) <= max(0.005, 3 * error)
        assert error < 0.02
