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
from numpy.typing import NDArray

from medusa_cli.decoding.tree_search import accuracy_table
from medusa_cli.support.errors import MedusaError
from medusa_cli.training import loop
from medusa_cli.training.heads import fit
from medusa_cli.training.heads.fit import rank_texts, tokens_per_step
from medusa_cli.training.heads.layers import Heads, HeadShape, round_weights
from medusa_cli.training.heads.loss import Likeliest, heads_loss, target_ranks
from medusa_cli.training.heads.rows import DraftRows, FileRows, TextRows, TokenEmbeddings, teacher_rows
from medusa_cli.training.heads.torch_setup import deterministic, require_torch
from medusa_cli.training.recipes import DEPTH_WEIGHT, KINDS, PATIENCE, RECIPES, Recipe
from medusa_cli.training.text import dataset

CPU = torch.device("cpu")
HIDDEN, VOCAB, COUNT = 16, 40, 3


def random_z(rows: int = 13) -> torch.Tensor:
    z = torch.randn(COUNT, rows, HIDDEN, generator=torch.Generator().manual_seed(0))
    return z.requires_grad_()


def batch(rows: int = 13) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    target = torch.randint(-1, VOCAB, (rows, COUNT), generator=generator)
    target[:, 2] = -1 if rows == 5 else target[:, 2]
    return target, torch.randn(VOCAB, HIDDEN, generator=generator)


@pytest.mark.parametrize("block", [1, 7, 1000])
@pytest.mark.parametrize("rows", [5, 13])
def test_loss_and_gradients_equal_plain_autograd(block: int, rows: int) -> None:
    target, output = batch(rows)
    ours, plain = random_z(rows), random_z(rows)
    loss = heads_loss(ours, target, output, block)
    (3 * loss).backward()

    expected = torch.zeros(())
    for k, z in enumerate(plain):
        if (target[:, k] >= 0).any():
            entropy = torch.nn.functional.cross_entropy(z @ output.T, target[:, k], ignore_index=-1)
            expected = expected + DEPTH_WEIGHT ** (k + 1) * entropy
    (3 * expected).backward()

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, plain.grad)


@pytest.mark.parametrize("block", [4, 1000])
def test_teacher_loss_and_gradients_equal_plain_autograd(block: int) -> None:
    target, output = batch()
    generator = torch.Generator().manual_seed(2)
    ids = torch.rand(13, COUNT, VOCAB, generator=generator).topk(6, dim=2).indices
    p = torch.softmax(torch.randn(13, COUNT, 6, generator=generator), dim=2)
    ours, plain = random_z(), random_z()
    loss = heads_loss(ours, target, output, block, Likeliest(ids, p))
    loss.backward()

    soft = torch.zeros(13, COUNT, VOCAB).scatter(2, ids, p)
    expected = torch.zeros(())
    for k, z in enumerate(plain):
        present = target[:, k] >= 0
        entropy = torch.nn.functional.cross_entropy((z @ output.T)[present], soft[present, k])
        expected = expected + DEPTH_WEIGHT ** (k + 1) * entropy
    expected.backward()

    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(ours.grad, plain.grad)


def test_ranks_count_the_preferred_rows() -> None:
    target, output = batch()
    output[7] = output[3]  # equal logits: the lower row goes first
    target[0, 0], target[1, 1] = 7, 3
    z = random_z()
    ranks = target_ranks(z, target, output, 10)
    logits = (z @ output.T).detach().numpy()
    for k in range(COUNT):
        for row in range(len(target)):
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
        self.examples = dataset.examples_of(self.tokens, self.spans[:50], self.t2d, COUNT)
        self.states = FileRows(self.shards, CPU)
        embeddings = TokenEmbeddings(self.output.half(), self.tokens)
        p = np.full((len(self.tokens), 2), 0.05, np.float16)
        p[:, 0] = 0.95
        ids = np.stack([self.tokens, (self.tokens + 1) % VOCAB], axis=1)
        self.taught = TextRows(self.states, embeddings, (FileRows([ids], CPU), FileRows([p], CPU)))
        self.source = TextRows(self.states, embeddings)

    def plan(
        self, steps: int, *, rate: float = 1e-3, noise: float = 0.0, decay: float = 0.1, **changes: Any
    ) -> fit.FitPlan:
        fields: dict[str, Any] = {
            "data": "d",
            "kind": "medusa",
            "objective": "truth",
            "heads": COUNT,
            "seed": 0,
            "steps": steps,
            "batch": 64,
            "device": "cpu",
            "recipe": Recipe(RECIPES[changes.get("kind", "medusa")].blocks, rate, noise, decay, 64),
        }
        return fit.FitPlan(**{**fields, **changes})

    def run(self, trainer: fit.Fit, **options: Any) -> bool:
        source = self.taught if trainer.plan.objective == "teacher" else self.source
        return trainer.run(DraftRows(source, self.examples, self.output), **options)

    def score(self, heads: Heads) -> float:
        return tokens_per_step(self.ranks(heads), 8)

    def ranks(self, heads: Heads) -> list[NDArray[np.int64]]:
        return rank_texts(heads, self.source, self.tokens, self.spans[50:], self.t2d, self.output)


@pytest.fixture(scope="module")
def data() -> Data:
    return Data()


def growth(heads: Heads) -> float:
    """Stands in for a score that training raises."""
    return float(sum(value.detach().abs().sum() for value in heads.parameters()))


def trained(data: Data, steps: int = 40, **changes: Any) -> fit.Fit:
    trainer = fit.Fit(data.plan(steps, **changes), HIDDEN, CPU)
    with deterministic(1):
        assert data.run(trainer, evaluate=growth)
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


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("stop", [1, 15, 39])
def test_interrupted_and_resumed_equals_uninterrupted(data: Data, tmp_path: Path, kind: str, stop: int) -> None:
    checkpoint = tmp_path / "heads.pt"
    plan = data.plan(40, kind=kind, objective="teacher", noise=0.5)
    first, second, again = (fit.Fit(plan, HIDDEN, CPU) for _ in range(3))
    with deterministic(1):
        stopped = data.run(first, evaluate=growth, checkpoint=checkpoint, should_stop=lambda: first.step >= stop)
        assert not stopped
        assert second.restore(checkpoint)
        assert second.step == stop
        assert data.run(second, evaluate=growth, checkpoint=checkpoint)
    whole = trained(data, kind=kind, objective="teacher", noise=0.5)
    assert same(second, whole)
    assert second.best.curve == whole.best.curve
    assert again.restore(checkpoint)
    assert again.finished
    with deterministic(1):
        assert data.run(again, evaluate=growth)
    assert same(again, whole)


@pytest.mark.parametrize("kind", KINDS)
def test_weights_decay_towards_those_of_fresh_heads(data: Data, kind: str) -> None:
    """At the highest rate, which the second of forty steps has, a decay of 1 / rate takes back all that was learned."""
    plan = data.plan(40, kind=kind, rate=1e-3, decay=1e3)
    trainer, fresh = fit.Fit(plan, HIDDEN, CPU), fit.Fit(plan, HIDDEN, CPU)
    data.run(fresh, should_stop=lambda: True)
    data.run(trainer, should_stop=lambda: trainer.step >= 1)
    assert not same(trainer, fresh)
    data.run(trainer, should_stop=lambda: trainer.step >= 2)
    assert same(trainer, fresh)


def test_the_best_weights_are_kept_and_training_ends_early(data: Data) -> None:
    values = iter([1.1, 1.4, *[1.3] * 50])
    seen = []

    def evaluate(heads: Heads) -> float:
        seen.append({name: value.clone() for name, value in heads.state_dict().items()})
        return next(values)

    trainer = fit.Fit(data.plan(160), HIDDEN, CPU)
    assert data.run(trainer, evaluate=evaluate)
    assert trainer.step == 10 * (2 + PATIENCE)
    assert [point.step for point in trainer.best.curve] == list(range(10, trainer.step + 1, 10))
    for name, value in trainer.heads.state_dict().items():
        torch.testing.assert_close(value, seen[1][name], rtol=0, atol=0)


def test_weights_measured_at_the_start_end_no_training_and_are_kept_if_none_are_better(data: Data) -> None:
    rising = [1.2 + 0.02 * at for at in range(16)]

    def run(*values: float) -> tuple[fit.Fit, dict[str, torch.Tensor]]:
        measured, first = iter(values), dict[str, torch.Tensor]()

        def evaluate(heads: Heads) -> float:
            if not first:
                first.update({name: value.clone() for name, value in heads.state_dict().items()})
            return next(measured)

        trainer = fit.Fit(data.plan(160), HIDDEN, CPU)
        trainer.measures_fresh = trainer.keeps_fresh = True
        assert data.run(trainer, evaluate=evaluate)
        return trainer, first

    late, first = run(1.49, *rising)
    assert (late.step, late.best.at) == (160, 16)
    assert not torch.equal(next(iter(late.heads.state_dict().values())), next(iter(first.values())))
    kept, first = run(1.6, *rising)
    assert (kept.step, kept.best.at) == (160, 0)
    for name, value in kept.heads.state_dict().items():
        torch.testing.assert_close(value, first[name], rtol=0, atol=0)
    assert run(1.4, 1.3, *[1.2] * 15)[0].step == 10 * (1 + PATIENCE)


def test_checkpoints_of_another_plan_or_damaged_ones_are_left_alone(data: Data, tmp_path: Path) -> None:
    checkpoint = tmp_path / "heads.pt"
    trained(data, 3).save(checkpoint)
    assert not fit.Fit(data.plan(4), HIDDEN, CPU).restore(checkpoint)
    assert not fit.Fit(data.plan(3, data="other"), HIDDEN, CPU).restore(checkpoint)
    for content in (b"", b"garbage", checkpoint.read_bytes()[:-100]):
        checkpoint.write_bytes(content)
        assert not fit.Fit(data.plan(3), HIDDEN, CPU).restore(checkpoint)
    assert not fit.Fit(data.plan(3), HIDDEN, CPU).restore(tmp_path / "none.pt")


def test_a_checkpoint_that_cannot_be_written_is_one_line(data: Data, tmp_path: Path) -> None:
    with pytest.raises(MedusaError, match=r"heads\.pt: ") as caught:
        trained(data, 1).save(tmp_path / "none" / "heads.pt")
    assert "\n" not in str(caught.value)


def test_a_checkpoint_never_runs_code(data: Data, tmp_path: Path) -> None:
    torch.save({"plan": {}, "step": Path("x")}, tmp_path / "evil.pt")
    assert loop.load_checkpoint(tmp_path / "evil.pt") is None


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["truth", "teacher"])
@pytest.mark.parametrize("kind", KINDS)
def test_heads_learn_what_can_be_learned(data: Data, kind: str, objective: str) -> None:
    trainer = fit.Fit(data.plan(300, rate=0.02, kind=kind, objective=objective), HIDDEN, CPU)
    assert data.run(trainer, evaluate=data.score)
    round_weights(trainer.heads)
    texts = data.ranks(trainer.heads)
    assert [text.shape for text in texts] == [(17, COUNT)] * 10
    fresh = Heads(HeadShape("medusa", COUNT, HIDDEN, 1))
    assert accuracy_table(texts)[0, 0] > 0.9
    assert accuracy_table(data.ranks(fresh))[0, 0] < 0.2


def test_schedule_warms_up_and_ends_at_zero() -> None:
    rates = [loop.learning_rate(step, 1000, 0.5, loop.rising_steps(1000, 100, 20)) for step in range(1001)]
    top = int(np.argmax(rates))
    assert rates[0] < rates[10] < rates[top] == 0.5
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_rate_is_measured(kind: str) -> None:
    shape = HeadShape(kind, COUNT, HIDDEN, RECIPES[kind].blocks)
    assert fit.measure_rate(shape, RECIPES[kind], "teacher", VOCAB, CPU, seconds=0.05) > 0


def test_the_teacher_is_the_softmax_of_the_likeliest_rows(data: Data, tmp_path: Path) -> None:
    d2t = np.arange(VOCAB, dtype=np.int32)
    calls: list[int] = []
    ids, p = teacher_rows(tmp_path, data.states, 1000, d2t, data.output, calls.append)
    rows = torch.tensor([0, 499, 500, 999])
    logits = np.concatenate(data.shards)[rows.numpy()].astype(np.float64) @ data.output.numpy().T
    order = np.argsort(-logits, axis=1)[:, :32]
    best = np.exp(np.take_along_axis(logits, order, axis=1))
    np.testing.assert_array_equal(ids.gather(rows).numpy(), order)
    np.testing.assert_allclose(p.gather(rows).numpy(), best / best.sum(axis=1, keepdims=True), atol=1e-3)

    done = len(calls)
    teacher_rows(tmp_path, data.states, 1000, d2t, data.output, calls.append)
    assert len(calls) == done  # kept
    teacher_rows(tmp_path, data.states, 1000, d2t[::-1].copy(), data.output, calls.append)
    assert len(calls) == 2 * done  # another draft vocabulary


def test_an_interrupted_teacher_leaves_nothing_behind(data: Data, tmp_path: Path) -> None:
    def stop(done: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        teacher_rows(tmp_path, data.states, 1000, np.arange(VOCAB, dtype=np.int32), data.output, stop)
    assert list(tmp_path.iterdir()) == []


def test_the_announced_checkpoint_size_is_the_real_one(data: Data, tmp_path: Path) -> None:
    trainer = trained(data, 3, kind="hydra++")
    trainer.save(tmp_path / "heads.pt")
    assert 0.95 * trainer.checkpoint_bytes < (tmp_path / "heads.pt").stat().st_size < 1.5 * trainer.checkpoint_bytes


def test_what_heads_are_taught_is_the_row_of_the_token_they_draft(data: Data) -> None:
    taught = data.taught.taught(torch.tensor([0, 21]), COUNT)
    assert isinstance(taught, Likeliest)
    ids, p = taught.ids, taught.p
    assert ids.shape == p.shape == (2, COUNT, 2)
    np.testing.assert_array_equal(ids[..., 0].numpy(), [data.tokens[1:4], data.tokens[22:25]])
    inputs = data.taught.inputs(torch.tensor([0, 21]), COUNT)
    assert inputs.embedded is not None
    expected = data.output.half()[torch.from_numpy(np.stack([data.tokens[0:3], data.tokens[21:24]])).long()]
    torch.testing.assert_close(inputs.embedded, expected)


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
