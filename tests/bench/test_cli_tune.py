"""`medusa tune`, and how other commands use what it stored."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cli_fakes
import pytest
from command_line import invoke

from medusa_cli import native
from medusa_cli.decoding import profile
from medusa_cli.decoding.options import EngineOptions
from medusa_cli.support import paths
from medusa_cli.support.errors import MedusaError
from medusa_cli.tuning import report, run

TREE = [[0], [0, 0], [2]]
CALIBRATION = {"plain_factor": 1.0, "plain_rest_ms": 0.0, "draft_factor": 1.1, "draft_rest_ms": 0.4}


START = {"calibration": [[0.1] * 24, [0.2] * 24], "costs": [[1, 1.0], [4, 1.5]]}


def predicted(name: str, tree: list[list[int]], tokens: float, cost: float, speed: float) -> dict[str, Any]:
    return {
        "name": name,
        "nodes": len(tree) + 1,
        "tree": tree,
        "tokens_per_step": tokens,
        "costs": [cost],
        "speedups": [speed],
        "speedup": speed,
    }


def measured(name: str, nodes: int | None, tokens: float, speed: float) -> dict[str, Any]:
    return {
        "name": name, "nodes": nodes, "prompts": 9, "tokens_per_step": tokens, "tokens_per_second": 100 * speed,
        "speedup": speed,
    }  # fmt: skip


def made_up(key: dict[str, Any], tree: list[list[int]], *, dynamic: bool = False) -> dict[str, Any]:
    """A profile as `tune` writes it."""
    return {
        "profile_format": profile.FORMAT,
        "recycling": False,
        "key": key,
        "model": {"name": "m.gguf", "description": "fake 1M F32"},
        "created": "2026-01-02T03:04:05+00:00",
        "seconds": 61.0,
        "tree": tree,
        "dynamic": dynamic,
        "dynamic_start": START,
        "reason": "drafting pays: a good reason",
        "method": "accuracies",
        "accuracy": [[0.5, 0.2], [0.4, 0.1]],
        "texts": {"prompts": "made up", "count": 9, "positions": 900},
        "costs": [{"position": 93, "verify_ms": {"1": 4.0, "2": 5.0, "4": 6.0, "8": 20.0}}],
        "calibration": CALIBRATION,
        "cpu_speedup": None,
        "predicted": [
            predicted("chain of 2", [[0]], 1.5, 1.25, 1.2),
            predicted("tree of 4", [[0], [1], [0, 0]], 1.9, 1.5, 1.27),
        ],
        "measured": [measured("plain", None, 1.0, 1.0), measured("tree of 4", 4, 1.6, 1.05)],
    }


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path, Any]:
    """A model file, a sidecar of heads, and the session class to script."""
    session = cli_fakes.install(monkeypatch)
    return cli_fakes.base_gguf(tmp_path / "m.gguf"), cli_fakes.heads_gguf(tmp_path / "h.gguf"), session


def key_of(model: tuple[Path, Path, Any], options: EngineOptions | None = None) -> dict[str, Any]:
    return profile.key(native.Model(str(model[0])), model[1], options or EngineOptions())


def choices_used(model: tuple[Path, Path, Any], *more: str) -> list[list[int]]:
    base, heads, session = model
    session.answers = ["x"]
    code, _, error = invoke("generate", str(base), "--heads", str(heads), "-p", "x", *more)
    assert code == 0, error
    return [list(choice) for choice in session.created[-1].tree.choices]


def test_generate_uses_the_tuned_tree(model: tuple[Path, Path, Any]) -> None:
    default = choices_used(model, "--tree", "static")
    profile.save(made_up(key_of(model), TREE))
    assert default != choices_used(model) == [[0], [2], [0, 0]]
    assert choices_used(model, "--tree", "cpu_4") == default
    profile.save(made_up(key_of(model), []))
    assert choices_used(model) == []
    assert model[2].created[-1].dynamic is None


def test_generate_makes_dynamic_trees_with_what_was_tuned(model: tuple[Path, Path, Any]) -> None:
    base, heads, session = model
    for profile_says, more in ((True, ()), (False, ("--tree", "dynamic"))):
        profile.save(made_up(key_of(model), TREE, dynamic=profile_says))
        session.answers = ["x"]
        code, _, error = invoke("generate", str(base), "--heads", str(heads), "-p", "x", *more)
        assert code == 0, error
        assert (session.created[-1].tree.size, session.created[-1].dynamic.costs) == (1, [(1, 1.0), (4, 1.5)])
        assert session.created[-1].dynamic.calibration[1] == pytest.approx([0.2] * 24)
    assert choices_used(model, "--tree", "cpu_4") != []
    assert session.created[-1].dynamic is None
    profile.save(made_up(key_of(model), TREE, dynamic=True))
    for more in (("-s", "1"), ("--tree", "static")):
        assert choices_used(model, *more) == [[0], [2], [0, 0]]
        assert session.created[-1].dynamic is None


def test_chat_says_when_plain_decoding_was_chosen(model: tuple[Path, Path, Any]) -> None:
    from rich.console import Console

    from medusa_cli.commands.chat import first_screen
    from medusa_cli.decoding.options import DraftOptions
    from medusa_cli.decoding.runtime import open_engine
    from medusa_cli.decoding.settings import Settings

    profile.save(made_up(key_of(model), []))
    engine = open_engine(str(model[0]), EngineOptions(), DraftOptions(heads=str(model[1])), Console(quiet=True))
    assert (engine.plan.tree_name, engine.tree_nodes) == ("", 1)
    assert first_screen(engine, Settings(0.0))[1].startswith("heads are not used: plain decoding was measured to be")


def test_a_profile_of_other_circumstances_does_not_apply(
    model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    default = choices_used(model)
    profile.save(made_up(key_of(model), TREE))
    assert choices_used(model, "-t", "77") == default
    kernels = {**native.kernel_info(), "selected": "another"}
    with monkeypatch.context() as patch:
        patch.setattr(native, "kernel_info", lambda: kernels)
        assert choices_used(model) == default
    with monkeypatch.context() as patch:
        patch.setattr("medusa_cli.support.machine.cpu_name", lambda: "another processor")
        assert choices_used(model) == default
    model[1].write_bytes(model[1].read_bytes() + b"\0" * 32)
    assert choices_used(model) == default


def test_a_profile_belongs_to_a_device_and_its_layers(
    model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = [key_of(model)]
    assert key_of(model, EngineOptions(n_gpu_layers=0)) == keys[0], "on the CPU no layers are offloaded"
    for backend, device in (("CUDA", "a GPU"), ("CUDA", "another GPU"), ("Vulkan", "a GPU")):
        monkeypatch.setattr(cli_fakes.FakeModel, "backend", backend)
        monkeypatch.setattr(cli_fakes.FakeModel, "device", device)
        keys += [key_of(model), key_of(model, EngineOptions(n_gpu_layers=7))]
    assert len({profile.path_of(key) for key in keys}) == len(keys)
    assert report.heading(made_up(keys[-1], TREE))[0].startswith("m.gguf (fake 1M F32) on a GPU (Vulkan), 7 layers, ")
    assert report.heading(made_up(keys[-2], TREE))[0].startswith("m.gguf (fake 1M F32) on a GPU (Vulkan), ")


@pytest.mark.parametrize(("backend", "size_bytes"), [("CPU", 1_000_000), ("CUDA", run.SMALL_BYTES + 1)])
def test_the_cpu_is_not_weighed_on_a_cpu_nor_for_a_large_model(
    model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch, backend: str, size_bytes: int
) -> None:
    from rich.console import Console

    monkeypatch.setattr(cli_fakes.FakeModel, "backend", backend)
    opened = run.open_model(str(model[0]), str(model[1]), EngineOptions(), Console(quiet=True))
    monkeypatch.setattr(opened.model, "size_bytes", size_bytes)
    assert run.cpu_speedup(opened, [[1]] * 4, 0.0, Console(quiet=True)) is None


@pytest.mark.parametrize(("speed", "said"), [(None, False), (0.8, False), (1.05, False), (1.06, True)])
def test_a_cpu_that_is_faster_than_the_device_is_named(
    model: tuple[Path, Path, Any], speed: float | None, said: bool
) -> None:
    line = "plain decoding is 1.06 times as fast on the CPU: run and tune this model with -ngl 0"
    assert (line in report.verdict({**made_up(key_of(model), TREE), "cpu_speedup": speed})) == said


def test_a_damaged_profile_is_a_remark(model: tuple[Path, Path, Any]) -> None:
    default = choices_used(model)
    path = profile.save(made_up(key_of(model), TREE))
    stored = made_up(key_of(model), TREE)
    damaged: tuple[dict[str, Any], ...] = (
        {"tree": [["x"]]},
        {"dynamic_start": {}},
        {"dynamic_start": {"calibration": [["x"]], "costs": []}},
    )
    for text in ("{", "[]", *(json.dumps({**stored, **part}) for part in damaged)):
        path.write_text(text)
        base, heads, session = model
        session.answers = ["x"]
        code, _, error = invoke("generate", str(base), "--heads", str(heads), "-p", "x")
        assert (code, error.count("\n")) == (0, 1)
        assert error.startswith(f"note: {path}")
        assert [list(choice) for choice in session.created[-1].tree.choices] == default
    path.write_text(json.dumps({**made_up(key_of(model), TREE), "profile_format": 0}))
    assert profile.load(key_of(model)) is None


def test_profiles_lie_in_the_data_folder_whole(
    model: tuple[Path, Path, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    path = profile.save(made_up(key_of(model), TREE))
    assert path.parent == tmp_path / "data" / "medusa" / "profiles" == paths.data_dir() / "profiles"
    assert path.name.startswith("llama-1x32-3-9f183aef2c64-")
    with pytest.raises(TypeError):
        profile.save({**made_up(key_of(model), TREE), "reason": object()})
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]
    assert profile.load(key_of(model)) == made_up(key_of(model), TREE)
    monkeypatch.setenv("XDG_DATA_HOME", str(model[0]))
    code, _, error = invoke("tune", str(model[0]), "--heads", str(model[1]))
    assert (code, error) == (
        1,
        f"error: {model[0]} cannot be written: set XDG_DATA_HOME to a folder you can write to\n",
    )
    with pytest.raises(MedusaError, match="set XDG_DATA_HOME to a folder you can write to"):
        profile.save(made_up(key_of(model), TREE))


def test_show_draws_the_stored_profile(model: tuple[Path, Path, Any], tmp_path: Path) -> None:
    arguments = ("tune", str(model[0]), "--heads", str(model[1]), "--show")
    code, _, error = invoke(*arguments)
    assert code == 1
    assert "was not tuned on this machine" in error
    stored = made_up(key_of(model), TREE)
    profile.save(stored)
    plot = tmp_path / "t.svg"
    code, out, _ = invoke(*arguments, "--plot", str(plot))
    assert code == 0
    assert "chosen: tree of 4 nodes\ndrafting pays: a good reason\n" in out
    assert "root ┬─ 0 50% ── 0 20%" in out
    assert "also tried, tree of 4:\nroot ┬─ 0 50% ── 0 20%\n     └─ 1 20%\n" in out
    row = next(line.split() for line in out.splitlines() if line.startswith("4 *"))
    assert row[2:8] == ["6.00", "1.50", "1.90", "1.27", "1.05", "███████"]
    assert "real decoding, relative to plain: plain 1.00, tree of 4 1.05\n" in out
    assert "note: tree of 4 nodes: predicted speed 1.27, measured 1.05 (with 1.90 and 1.60 tokens per step)" in out
    assert b"<svg" in plot.read_bytes()
    code, out, _ = invoke(*arguments, "--json")
    assert (code, json.loads(out)) == (0, stored)


def test_show_of_a_profile_that_chose_plain_decoding(capsys: pytest.CaptureFixture[str]) -> None:
    from medusa_cli.support import console

    key = {"cpu": None, "backend": "CPU", "device": "", "threads": 0, "kernels": "scalar", "gpu_layers": 0}
    report.show({**made_up(key, []), "costs": [], "predicted": [], "measured": []}, console.data())
    assert "chosen: plain decoding" in capsys.readouterr().out


def test_what_was_measured_is_written_into_the_heads(
    model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    base, heads, _ = model
    old = key_of(model)
    monkeypatch.setattr(run, "tune", lambda opened, *rest: made_up(opened.key, TREE))
    code, _, error = invoke("tune", str(base), "--heads", str(heads), "--write")
    assert code == 0, error
    assert f"written: {heads}\n" in error
    written = native.read_gguf(str(heads)).metadata
    assert written["medusa.accuracy"] == pytest.approx([0.5, 0.2, 0.4, 0.1])
    assert written["medusa.tree"] == [1, 0, 2, 0, 0, 1, 2]
    # The profile holds for the file as it is now.
    assert key_of(model) != old
    assert choices_used(model) == [[0], [2], [0, 0]]


def test_the_way_to_find_trees_is_chosen(model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    base, heads, _ = model
    opened = []

    def measured_with(one: run.Opened, *rest: Any) -> dict[str, Any]:
        opened.append(one)
        return {**made_up(one.key, TREE), "method": one.method.value}

    monkeypatch.setattr(run, "tune", measured_with)
    code, out, error = invoke("tune", str(base), "--heads", str(heads), "--method", "simulate")
    assert code == 0, error
    assert "trees by simulated decoding" in out
    assert invoke("tune", str(base), "--heads", str(heads))[0] == 0
    assert [(one.method.value, one.sizes[-1]) for one in opened] == [("simulate", 100), ("accuracies", 64)]
    assert invoke("tune", str(base), "--heads", str(heads), "--method", "guess")[0] == 2


def test_heads_that_came_with_medusa_are_not_written_to(
    model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from medusa_cli.models import references

    base, heads, _ = model
    monkeypatch.setattr(
        references,
        "resolve",
        lambda *_: references.ModelRef("demo", base, references.HeadsRef(heads, references.Origin.shipped)),
    )
    before = heads.read_bytes()
    code, _, error = invoke("tune", "demo", "--write")
    assert (code, error.count("\n")) == (1, 1)
    assert "copy it and give the copy to --heads" in error
    assert heads.read_bytes() == before


def test_without_heads_it_says_what_it_needs(model: tuple[Path, Path, Any]) -> None:
    code, _, error = invoke("tune", str(model[0]))
    assert (code, error.count("\n")) == (1, 1)
    assert (
        "has no draft heads, so there is no tree to tune: give --heads FILE, or make some with `medusa train`" in error
    )


@pytest.mark.parametrize(
    ("more", "code", "words"),
    [
        (("--ctx", "512,many"), 2, "is not a list of context lengths"),
        (("--ctx", "0"), 2, "is not a list of context lengths"),
        (("--minutes", "0"), 2, "--minutes"),
        (("--text", "no-such-file"), 1, "no such file: no-such-file"),
        (("--plot", "x.txt"), 1, "a plot is .svg, .png, .pdf"),
        (("--plot", "no-such-folder/x.svg"), 1, "no-such-folder/x.svg: No such file or directory"),
        (("--heads", "no-heads.gguf"), 1, "no such file: no-heads.gguf"),
    ],
)
def test_bad_input_is_one_line(model: tuple[Path, Path, Any], more: tuple[str, ...], code: int, words: str) -> None:
    found, _, error = invoke("tune", str(model[0]), *more)
    assert found == code
    assert words in error
    assert code == 2 or error.count("\n") == 1


def test_too_few_prompts(model: tuple[Path, Path, Any], tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text('{"prompt": "one"}\n')
    code, _, error = invoke("tune", str(model[0]), "--text", str(file))
    assert (code, error) == (1, f"error: {file} holds 1 prompts: give at least 4\n")


def test_ctrl_c_stores_nothing(model: tuple[Path, Path, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*arguments: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "tune", interrupted)
    code, out, _ = invoke("tune", str(model[0]), "--heads", str(model[1]))
    assert (code, out) == (130, "")
    assert not profile.folder().exists()


@pytest.mark.slow
@pytest.mark.model
def test_tune_the_demo(demo_model_path: Path, tmp_path: Path) -> None:
    file = tmp_path / "p.jsonl"
    file.write_text("".join(f'{{"prompt": "Write a short story about {name}."}}\n' for name in "ABCDE"))
    code, out, error = invoke(
        "tune", "demo", "--minutes", "0.1", "--ctx", "64", "--text", str(file), "-t", "1", "--json"
    )
    assert code == 0, error
    found = json.loads(out)
    names = [row["name"] for row in found["measured"]]
    assert names[0] == "plain"
    assert names[-3:] == ["dynamic", "dynamic+lookup", "dynamic+lookup+recycling"]
    assert 5 <= len(names) <= 8
    assert len(found["dynamic_start"]["calibration"]) > 1
    assert found["dynamic_start"]["costs"][0] == [1, 1.0]
    assert found["measured"][0]["speedup"] == 1.0
    assert [cost["position"] for cost in found["costs"]][1] == 64
    assert 0.2 < found["accuracy"][0][0] < 0.9
    stored = profile.load(found["key"])
    assert stored == found
    code, shown, _ = invoke("tune", "demo", "-t", "1", "--show")
    assert code == 0
    assert found["reason"] in shown
    code, out, error = invoke("generate", "demo", "-p", "Hello", "-n", "4", "-t", "1", "--repeat-steps", "--json")
    assert code == 0, error
    assert found["dynamic"] or json.loads(out)["tree_nodes"] == len(found["tree"]) + 1
