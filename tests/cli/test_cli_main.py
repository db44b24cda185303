"""The command as a whole: help, version, errors and exit codes, what is imported when."""

from __future__ import annotations

import errno
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from command_line import invoke

from medusa_cli import __version__, cli
from medusa_cli.support import errors, versions
from medusa_cli.support.errors import MedusaError
from medusa_cli.support.versions import LLAMA_CPP_PYTHON_PIN

COMMANDS = ("chat", "generate", "inspect", "split", "train", "tune", "bench", "doctor")
SHARED = (
    "-n/--max-tokens --temp --top-k --top-p --min-p --repeat-penalty --repeat-last-n --logit-bias -s/--seed --stop "
    "--ignore-eos -c/--ctx-size -t/--threads -ngl/--n-gpu-layers -dev/--device -ctk/--cache-type-k "
    "-ctv/--cache-type-v --heads --tree --accept --epsilon --delta --greedy-root --as-published --no-spec "
    "-sys/--system-prompt"
)
OWN = {
    "chat": "--color-drafts",
    "generate": "-p/--prompt -f/--file --raw --json",
    "inspect": "--json",
    "split": "--base-out --heads-out --force",
    "train": "-o/--output --sidecar --kind --heads --joint --minutes --data --recipe -t/--threads "
    "-ngl/--n-gpu-layers --force",
    "tune": "--minutes --ctx --text --heads -t/--threads -ngl/--n-gpu-layers -dev/--device --show --json --plot",
    "bench": "--data --methods -n/--max-tokens --repeat --limit --temp -s/--seed --draft-model --json --md --plot",
    "doctor": "--json",
}

WITH_HELP_ALL = ("chat", "generate", "convert", "tune", "bench")


def test_help_names_every_command() -> None:
    code, out, _ = invoke("--help")
    assert code == 0
    for command in COMMANDS:
        assert f" {command} " in out


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_names_its_options(command: str) -> None:
    code, out, _ = invoke(command, "--help-all" if command in WITH_HELP_ALL else "-h")
    assert code == 0
    wanted = OWN[command].split() + (SHARED.split() if command in ("chat", "generate") else [])
    for option in wanted:
        for spelling in option.split("/"):
            assert f" {spelling} " in out, spelling


@pytest.mark.parametrize("command", WITH_HELP_ALL)
def test_help_is_short_and_names_the_whole_help_last(command: str) -> None:
    code, short, _ = invoke(command, "--help")
    assert code == 0
    assert short.strip().splitlines()[-1].strip() == f"All options: `medusa {command} --help-all`."
    code, whole, _ = invoke(command, "--help-all")
    assert code == 0
    assert "All options" not in whole
    shown, all_shown = options_in(short), options_in(whole)
    assert shown < all_shown
    parser: Any = typer.main.get_command(cli.app)
    found = parser.commands[command]
    parameters = (found.commands["run"] if command == "bench" else found).params
    assert all_shown == {name for one in parameters for name in one.opts if name.startswith("--")} | {"--help"}


def options_in(text: str) -> set[str]:
    """The long names that a help text has a line of."""
    return set(re.findall(r"^[^\w-]*(--[a-z-]+)", text, re.MULTILINE))


def test_help_of_chat_shows_at_most_12_options() -> None:
    _, out, _ = invoke("chat", "--help")
    assert len(options_in(out)) <= 12


def test_version() -> None:
    code, out, err = invoke("--version")
    first, build, licences = out.splitlines()
    assert (code, first, err) == (0, f"medusa {__version__}", "")
    assert re.fullmatch(rf"built for cp3\d+-\w+-\w+ and llama-cpp-python {re.escape(LLAMA_CPP_PYTHON_PIN)}", build)
    assert licences.startswith("licences: Apache-2.0 AND ")
    folder = Path(licences.rsplit("; texts: ")[1])
    assert {"LICENSE", "nanobind.txt", "temml.txt"} <= {path.name for path in folder.rglob("*") if path.is_file()}


def test_version_without_an_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(versions, "DISTRIBUTION", "medusa-cli-that-is-not-installed")
    assert invoke("--version") == (0, f"medusa {__version__}\n", "")


@pytest.mark.parametrize(
    "arguments",
    [
        ("frobnicate",),
        ("chat", "--frobnicate"),
        ("generate",),
        ("generate", "m.gguf", "-p", "x", "-n", "many"),
        ("generate", "m.gguf", "-p", "x", "-c", "-5"),
        ("generate", "m.gguf", "-p", "x", "--top-p", "1.5"),
        ("generate", "m.gguf", "-p", "x", "-ctk", "q9_9"),
        ("generate", "m.gguf", "-p", "x", "--accept", "maybe"),
        ("generate", "m.gguf", "-p", "x", "--accept", "greedy", "--temp", "1"),
        ("generate", "m.gguf", "-p", "x", "--accept", "rejection"),
        ("generate", "m.gguf", "-p", "x", "--accept", "rejection", "--temp", "0"),
        ("chat", "m.gguf", "--accept", "nucleus", "--temp", "0"),
        ("bench", "m.gguf", "--accept", "rejection", "--temp", "0.7,0"),
        ("generate", "m.gguf", "-p", "x", "--greedy-root"),
        ("generate", "m.gguf", "-p", "x", "--as-published"),
        ("generate", "m.gguf", "-p", "x", "--accept", "typical", "--as-published", "--top-p", "0.9"),
        ("generate", "m.gguf", "-p", "x", "--accept", "nucleus", "--temp", "1", "--min-p", "0.1"),
        ("generate", "m.gguf", "-p", "x", "--epsilon", "0"),
        ("generate", "m.gguf", "-p", "x", "--stop", ""),
        ("generate", "m.gguf", "-p", "x", "--logit-bias", "hello=1"),
        ("generate", "m.gguf", "-p", "x", "-f", "-", "-f", "-"),
        ("generate", "m.gguf", "-p", "x", "--raw", "-sys", "y"),
        ("train",),
        ("split",),
    ],
)
def test_usage_errors_exit_with_2(arguments: tuple[str, ...]) -> None:
    code, out, err = invoke(*arguments)
    assert (code, out) == (2, "")
    assert "Traceback" not in err


def test_multi_letter_options_parse_like_llama_cpp(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, Any] = {}

    def open_engine(reference: str, options: object, draft: object, console: object, *, seeded: bool) -> None:
        seen.update(vars(options), reference=reference, **vars(draft))
        raise MedusaError("far enough")

    monkeypatch.setattr("medusa_cli.decoding.runtime.open_engine", open_engine)
    code, _, err = invoke(
        "generate", "m.gguf", "-p", "x", "-sys", "s", "-ngl", "7", "-ctk", "q8_0", "-ctv", "bf16", "-c", "64",
        "-t", "3", "--heads", "h.gguf", "--tree", "t.json:a", "--no-spec", "-n", "-1",
    )  # fmt: skip
    assert (code, err) == (1, "error: far enough\n")
    assert (seen["reference"], seen["n_gpu_layers"], seen["ctx_size"], seen["threads"]) == ("m.gguf", 7, 64, 3)
    assert (seen["cache_type_k"].value, seen["cache_type_v"].value) == ("q8_0", "bf16")
    assert (str(seen["heads"]), seen["tree"], seen["no_spec"]) == ("h.gguf", "t.json:a", True)


def test_help_stays_fast_by_importing_little() -> None:
    heavy = ["numpy", "llama_cpp", "torch", "jinja2", "prompt_toolkit", "gguf", "medusa_cli.native"]
    code = f"import sys, medusa_cli.cli; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"


class NativeError(RuntimeError):
    """Recognised by its name, as the engine's own is."""


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (MedusaError("what:\n  where"), 1, "error: what: where\n"),
        (NativeError("bad tensor"), 1, "error: bad tensor\n"),
        (OSError(errno.ENOSPC, "No space left on device", "x.gguf"), 1, "error: x.gguf: no space left on the disk"),
        (PermissionError(errno.EACCES, "Permission denied", "x.gguf"), 1, "error: x.gguf: permission denied\n"),
        (MemoryError(), 1, "error: out of memory"),
        (ZeroDivisionError("division by zero"), 1, "error: internal error: ZeroDivisionError: division by zero"),
        (KeyboardInterrupt(), 130, ""),
    ],
)
def test_every_error_becomes_one_line_and_a_code(
    error: BaseException, code: int, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**_: object) -> None:
        raise error

    monkeypatch.delenv("MEDUSA_DEBUG", raising=False)
    monkeypatch.setattr("medusa_cli.diagnosis.report.diagnose", fail)
    got, out, err = invoke("doctor")
    assert (got, out) == (code, "")
    assert err.startswith(line)
    assert err.count("\n") == (1 if line else 0)


def test_a_closed_pipe_is_quiet() -> None:
    program = "import sys; from medusa_cli.cli import main; sys.argv[0] = 'medusa'; main()"
    command = f'{sys.executable} -c "{program}" --help; echo code $? >&2'
    reader, writer = subprocess.PIPE, subprocess.PIPE
    process = subprocess.Popen(["sh", "-c", command], stdout=reader, stderr=writer, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.wait()
    assert "Traceback" not in err
    assert "BrokenPipe" not in err


def test_the_debug_variable_shows_the_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MEDUSA_DEBUG", "1")
    assert errors.report(MedusaError("what")) == 1
    err = capsys.readouterr().err
    assert err.startswith("medusa_cli.converters.errors.MedusaError: what\n")
    assert err.endswith("error: what\n")
