"""`medusa generate`: one prompt in, one text (or one JSON object) out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medusa_cli.commands.command_line import ModelArgument, SystemOption, grouped
from medusa_cli.decoding.options import GENERATE_TEMPERATURE, DraftOptions, EngineOptions, SamplingOptions

if TYPE_CHECKING:
    from medusa_cli.decoding.records import Generation, Piece
    from medusa_cli.decoding.runtime import Engine
    from medusa_cli.decoding.settings import Settings


@grouped
def generate(
    model: ModelArgument,
    engine: EngineOptions,
    draft: DraftOptions,
    sampling: SamplingOptions,
    prompt: Annotated[
        str | None, typer.Option("-p", "--prompt", metavar="TEXT", help="The prompt; it follows the files.")
    ] = None,
    file: Annotated[
        list[Path] | None,
        typer.Option("-f", "--file", metavar="FILE", help="Read the prompt from FILE (-: standard input); repeatable."),
    ] = None,
    system: SystemOption = None,
    raw: Annotated[bool, typer.Option("--raw", help="Use the prompt as it is, without the chat template.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of streaming.")] = False,
) -> None:
    """Generate text after one prompt: -p TEXT, -f FILE, both, or standard input."""
    from medusa_cli.decoding import settings
    from medusa_cli.support import console
    from medusa_cli.support.files import valid_text

    text = _read_prompt(prompt, file or [])
    if raw and system is not None:
        raise typer.BadParameter("--raw cannot be combined with a system prompt", param_hint="-sys")
    if raw and (sampling.thinking is not None or sampling.think != -1 or sampling.reasoning_effort is not None):
        raise typer.BadParameter("thinking needs the chat template: leave --raw out", param_hint="--raw")
    settings.from_options(sampling, draft, GENERATE_TEMPERATURE)  # reports contradictions before a model is loaded
    from medusa_cli.decoding.runtime import open_engine

    opened = open_engine(model, engine, draft, console.messages(), seeded=settings.is_seed(sampling.seed))
    chosen = settings.from_options(sampling, draft, GENERATE_TEMPERATURE, opened.sampling)
    if raw:
        tokens = opened.raw_tokens(text)
    else:
        messages = [{"role": "user", "content": text}]
        if system:
            messages.insert(0, {"role": "system", "content": valid_text(system)})
        tokens = opened.chat_tokens(messages, thinking=chosen.wanted_thinking)
    _run(opened, tokens, chosen, raw, as_json)


STDIN = Path("-")


def _read_prompt(prompt: str | None, files: list[Path]) -> str:
    """The text of one file as it is; if there are several, or a text follows, each under its name."""
    from medusa_cli.prompts.framing import with_files
    from medusa_cli.support.errors import MedusaError
    from medusa_cli.support.files import STANDARD_INPUT, read_text, valid_text

    if files.count(STDIN) > 1:
        raise typer.BadParameter("standard input (-) can be read once", param_hint="--file")
    if prompt is None and not files and sys.stdin.isatty():
        raise typer.BadParameter("there is no prompt: give -p TEXT, -f FILE, or pipe one in", param_hint="--prompt")
    if prompt is None and len(files) < 2:
        text = read_text(files[0] if files else STDIN)
    else:
        named = [(STANDARD_INPUT if file == STDIN else str(file), read_text(file)) for file in files]
        text = with_files(named, valid_text(prompt or ""))
    if not text:
        raise MedusaError("the prompt is empty: give -p TEXT, -f FILE, or pipe one in")
    return text


def _run(engine: Engine, tokens: list[int], settings: Settings, raw: bool, as_json: bool) -> None:
    """Generates and prints. Ctrl-C or an error of the engine is raised after what there is has been printed."""
    from medusa_cli.decoding import figures
    from medusa_cli.decoding.answering import Answering
    from medusa_cli.support import console
    from medusa_cli.support.errors import is_reportable
    from medusa_cli.support.reading import ReadingLine
    from medusa_cli.support.shown import ShownAnswer

    seed = settings.pick_seed()
    shown = ShownAnswer(empty_line=False)
    reading = ReadingLine(wanted=not as_json or sys.stdout.isatty())

    def on_step(pieces: list[Piece]) -> None:
        reading.end()
        for piece in pieces:
            if not as_json:
                shown.piece(piece.text, piece.thinking)

    cut: BaseException | None = None
    generation: Generation | None
    answering = Answering(engine, settings, seed, raw=raw, on_step=on_step, on_prompt=reading)
    try:
        generation = answering.run(tokens)
    except BaseException as error:
        if not (isinstance(error, KeyboardInterrupt) or is_reportable(error)):
            raise
        cut, generation = error, answering.record()
    finally:
        reading.end()
    if generation is not None and as_json:
        console.print_json(figures.as_json(generation, seed))
    elif not as_json:
        shown.end()
        if generation is not None and sys.stderr.isatty():
            console.messages().print(figures.stats_line(generation.stats), style="dim", markup=False)
    if cut is not None:
        raise cut
