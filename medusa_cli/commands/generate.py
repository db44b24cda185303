"""`medusa generate`: one prompt in, one text (or one JSON object) out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medusa_cli.commands.command_line import ModelArgument, SystemOption, grouped
from medusa_cli.decoding.options import GENERATE_TEMPERATURE, DraftOptions, EngineOptions, SamplingOptions

if TYPE_CHECKING:
    from medusa_cli import native
    from medusa_cli.decoding.runtime import Engine
    from medusa_cli.decoding.settings import Settings


@grouped
def generate(
    model: ModelArgument,
    engine: EngineOptions,
    draft: DraftOptions,
    sampling: SamplingOptions,
    prompt: Annotated[str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt.")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from FILE (-: standard input).")
    ] = None,
    system: SystemOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Use the prompt as it is, without the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming.")] = False,
) -> None:
    """Generate text after one prompt: -p TEXT, -f FILE, or standard input."""
    from medusa_cli.decoding import settings
    from medusa_cli.support import console
    from medusa_cli.support.files import valid_text

    text = _read_prompt(prompt, file)
    if raw and system is not None:
        raise typer.BadParameter("--raw cannot be combined with a system prompt", param_hint="-sys")
    settings.from_options(sampling, draft, GENERATE_TEMPERATURE)  # contradictions are told before a model is loaded
    from medusa_cli.decoding.runtime import open_engine

    opened = open_engine(model, engine, draft, console.messages(), seeded=settings.is_seed(sampling.seed))
    chosen = settings.from_options(sampling, draft, GENERATE_TEMPERATURE, opened.sampling)
    if raw:
        tokens = opened.raw_tokens(text)
    else:
        messages = [{"role": "user", "content": text}]
        if system:
            messages.insert(0, {"role": "system", "content": valid_text(system)})
        tokens = opened.chat_tokens(messages)
    _run(opened, tokens, chosen, as_json)


def _read_prompt(prompt: str | None, file: Path | None) -> str:
    from medusa_cli.support.errors import MedusaError
    from medusa_cli.support.files import read_text, valid_text

    if prompt is not None and file is not None:
        raise typer.BadParameter("give either -p or -f, not both", param_hint="--prompt")
    if prompt is not None:
        text = valid_text(prompt)
    elif file is None and sys.stdin.isatty():
        raise typer.BadParameter("there is no prompt: give -p TEXT, -f FILE, or pipe one in", param_hint="--prompt")
    else:
        text = read_text(file or Path("-"))
    if not text:
        raise MedusaError("the prompt is empty: give -p TEXT, -f FILE, or pipe one in")
    return text


def _run(engine: Engine, tokens: list[int], settings: Settings, as_json: bool) -> None:
    """Generates and prints. Ctrl-C, or an error of the engine, is raised once what there is has been printed."""
    from medusa_cli.decoding import figures
    from medusa_cli.support import console, wrapping
    from medusa_cli.support.errors import is_reportable

    seed = settings.pick_seed()
    ended_line = True
    begun = False
    clean = console.printable if sys.stdout.isatty() else str
    wrap = wrapping.on_terminal(sys.stdout)

    def on_step(pieces: list[native.Piece]) -> None:
        nonlocal begun, ended_line
    from medusa_cli.support.reading import ReadingLine
        begun = True
        text = clean("".join(piece.text for piece in pieces))
        if text and not as_json:
            sys.stdout.write(wrap.piece(text))
            sys.stdout.flush()
            ended_line = text.endswith("\n")
    reading = ReadingLine(wanted=not as_json or sys.stdout.isatty())

    cut: BaseException | None = None
    generation: native.Generation | None
        reading.end()
    try:
        generation = engine.generate(tokens, settings, seed, on_step, on_prompt=reading)
    except BaseException as error:
        if not (isinstance(error, KeyboardInterrupt) or is_reportable(error)):
            raise
        cut, generation = error, engine.last if begun else None
    if generation is not None and as_json:
        console.print_json(figures.as_json(generation, seed))
    elif not as_json:
        print(wrap.end(), end="" if ended_line else "\n", flush=True)
        if generation is not None and sys.stderr.isatty():
            console.messages().print(figures.stats_line(generation.stats), style="dim", markup=False)
    if cut is not None:
        raise cut
    finally:
        reading.end()
