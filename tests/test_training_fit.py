"""The torch part: loss, ranks, determinism, resuming, and learning something that can be learned."""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from medusa_cli.errors import MedusaError
from medusa_cli.training import dataset, fit
from medusa_cli.training.evaluate import accuracy_table
from medusa_cli.training.heads import HEAD_DECAY, Heads, heads_loss, target_ranks
from medusa_cli.training.torch_setup import deterministic, require_torch

CPU = torch.device("cpu")
HIDDEN, VOCAB, COUNT = 16, 40, 3


def random_heads(seed: int = 0) -> Heads:
    heads = Heads(COUNT, HIDDEN)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        heads.weight.normal_(0, 0.3, generator=generator)
        heads.bias.normal_(0, 0.3, generator=generator)
    return heads


def batch(rows: int = 13) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    states = torch.randn(rows, HIDDEN, generator=generator)
    target = torch.randint(-1, VOCAB, (rows, COUNT), generator=generator)
    target[:, 2] = -1 if rows == 5 else target[:, 2]
    return states, target, torch.randn(VOCAB, HIDDEN, generator=generator)


def test_untrained_heads_are_the_identity() -> None:
    states, _, _ = batch()
    torch.testing.assert_close(Heads(2, HIDDEN)(states), states.expand(2, -1, -1))


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("rows", [5, 13])
def test_loss_and_gradients_equal_plain_autograd(block: int, rows: int) -> None:
    states, target, output = batch(rows)
    ours, plain = random_heads(), random_heads()
    loss = heads_loss(ours, states, target, output, block)
    loss.backward()

    expected = torch.zeros(())
    for k, z in enumerate(plain(states)):
        if (target[:, k] >= 0).any():
            entropy = torch.nn.functional.cross_entropy(z @ output.T, target[:, k], ignore_index=-1)
            expected = expected + HEAD_DECAY ** (k + 1) * entropy
    expected.backward()

    torch.testing.assert_close(loss, expected)
    for mine, theirs in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad)


def test_ranks_count_the_preferred_rows() -> None:
    states, target, output = batch()
    output[7] = output[3]  # equal logits: the lower row goes first
    target[0, 0], target[1, 1] = 7, 3
    heads = random_heads()
    ranks = target_ranks(heads, states, target, output, 10)
    logits = (heads(states) @ output.T).detach().numpy()
    for k in range(COUNT):
        for row in range(len(states)):
            order = np.argsort(-logits[k, row], kind="stable").tolist()
            wanted = int(target[row, k])
            expected = min(10, order.index(wanted)) if wanted >= 0 else 10
            assert ranks[row, k] == expected


class Data:
    """Texts in which every token decides the next one, and states that name the token; three shards."""

    def __init__(self, folder: Path | None = None) -> None:
        rng = np.random.default_rng(0)
        follow = rng.permutation(VOCAB)
        embedding = rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
        tokens = []
        for _ in range(60):
            text = [int(rng.integers(VOCAB))]
            while len(text) < 20:
                text.append(int(follow[text[-1]]))
            tokens.append(text)
        self.tokens = np.array(tokens, dtype=np.int32).ravel()
        states = embedding[self.tokens].astype(np.float16)
        self.shards = [states[:500], states[500:900], states[900:]]
        self.spans = [dataset.Span(20 * i, 20, f"g{i}") for i in range(60)]
        self.t2d = np.arange(VOCAB, dtype=np.int32)
        self.output = torch.from_numpy(embedding)
        self.rows, self.target = dataset.targets(self.tokens, self.spans[:50], self.t2d, COUNT)
        self.states = fit.StateRows(self.shards, CPU)

    def plan(self, steps: int, **changes: Any) -> fit.FitPlan:
        fields = {"data": "d", "heads": COUNT, "seed": 0, "steps": steps, "batch": 64, "device": "cpu"}
        return fit.FitPlan(**{**fields, **changes})

    def run(self, trainer: fit.Fit, **options: Any) -> bool:
        return trainer.run(self.states, self.rows, self.target, self.output, **options)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


def trained(data: Data, steps: int = 40, **changes: Any) -> fit.Fit:
    trainer = fit.Fit(data.plan(steps, **changes), HIDDEN, CPU)
    with deterministic(1):
        assert data.run(trainer)
    return trainer


def same(first: fit.Fit, second: fit.Fit) -> bool:
    pairs = zip(first.heads.parameters(), second.heads.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def test_states_are_gathered_across_shards(data: Data) -> None:
    rows = torch.tensor([899, 0, 500, 1199, 499, 900, 0])
    expected = np.concatenate(data.shards)[rows.numpy()]
    np.testing.assert_array_equal(data.states.gather(rows).numpy(), expected)


def test_same_seed_same_heads(data: Data) -> None:
    first = trained(data)
    assert same(first, trained(data))
    assert not same(first, trained(data, seed=1))


@pytest.mark.parametrize("stop", [1, 15, 39])
def test_interrupted_and_resumed_equals_uninterrupted(data: Data, tmp_path: Path, stop: int) -> None:
    checkpoint = tmp_path / "heads.pt"
    first = fit.Fit(data.plan(40), HIDDEN, CPU)
    second = fit.Fit(data.plan(40), HIDDEN, CPU)
    with deterministic(1):
        assert not data.run(first, checkpoint=checkpoint, should_stop=lambda: first.step >= stop)
        assert second.restore(checkpoint)
        assert second.step == stop
        assert data.run(second, checkpoint=checkpoint)
    assert same(second, trained(data))
    again = fit.Fit(data.plan(40), HIDDEN, CPU)
    assert again.restore(checkpoint)
    assert again.step == 40


def test_checkpoints_of_another_plan_or_damaged_ones_are_left_alone(data: Data, tmp_path: Path) -> None:
    checkpoint = tmp_path / "heads.pt"
    trained(data, 3).save(checkpoint)
    assert not fit.Fit(data.plan(4), HIDDEN, CPU).restore(checkpoint)
    assert not fit.Fit(data.plan(3, data="other"), HIDDEN, CPU).restore(checkpoint)
    for content in (b"", b"garbage", checkpoint.read_bytes()[:-100]):
        checkpoint.write_bytes(content)
        assert not fit.Fit(data.plan(3), HIDDEN, CPU).restore(checkpoint)
    assert not fit.Fit(data.plan(3), HIDDEN, CPU).restore(tmp_path / "none.pt")


def test_a_checkpoint_never_runs_code(data: Data, tmp_path: Path) -> None:
    torch.save({"plan": {}, "step": Path("x")}, tmp_path / "evil.pt")
    assert fit.load_checkpoint(tmp_path / "evil.pt") is None


def test_heads_learn_what_can_be_learned(data: Data, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fit, "PEAK_RATE", 0.03)
    trainer = trained(data, 400)
    trainer.round_weights()
    texts = fit.rank_texts(trainer.heads, data.states, data.tokens, data.spans[50:], data.t2d, data.output)
    assert [text.shape for text in texts] == [(17, COUNT)] * 10
    before = Heads(COUNT, HIDDEN)
    untrained = fit.rank_texts(before, data.states, data.tokens, data.spans[50:], data.t2d, data.output)
    assert accuracy_table(texts)[0, 0] > 0.9
    assert accuracy_table(untrained)[0, 0] < 0.2


def test_schedule_warms_up_and_ends_at_zero() -> None:
    rates = [fit.learning_rate(step, 1000) for step in range(1001)]
    top = int(np.argmax(rates))
    assert rates[0] < rates[10] < rates[top] == fit.PEAK_RATE
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-12)


def test_rate_is_measured() -> None:
    assert fit.measure_rate(HIDDEN, VOCAB, COUNT, CPU, seconds=0.05) > 0


def test_missing_torch_is_one_clear_line(monkeypatch: pytest.MonkeyPatch) -> None:
    real: Callable[..., Any] = builtins.__import__

    def no_torch(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "torch":
            raise ImportError("No module named 'torch'")
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(builtins, "__import__", no_torch)
    with pytest.raises(MedusaError, match=r'pip install "medusa-cli\[train\]" -c constraints\.txt'):
        require_torch()
