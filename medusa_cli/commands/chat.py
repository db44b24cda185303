"""`medusa chat`: a conversation in the terminal."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from medusa_cli.commands.command_line import ModelArgument, SystemOption, grouped
from medusa_cli.decoding.options import CHAT_TEMPERATURE, DraftOptions, EngineOptions, SamplingOptions

if TYPE_CHECKING:
    from medusa_cli.decoding.runtime import Engine
    from medusa_cli.decoding.settings import Settings


def complete_session(incomplete: str) -> list[str]:
    """Names of sessions that begin with it."""
    from medusa_cli.chat import sessions

    return [name for name in sessions.names() if name.startswith(incomplete)]


@grouped
def chat(
    engine: EngineOptions,
    draft: DraftOptions,
    sampling: SamplingOptions,
    model: ModelArgument = "demo",
    system: SystemOption = None,
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            metavar="NAME",
            help="Keep the conversation under this name, with what the model has read of it.",
            autocompletion=complete_session,
        ),
    ] = None,
    color_drafts: Annotated[
        bool, typer.Option("--color-drafts", hidden=True, help="Colour the tokens that were drafted.")
    ] = False,
) -> None:
    """Chat with a model. Piped input: one message per line; only the answers go to stdout."""
    from medusa_cli.chat import sessions
    from medusa_cli.decoding import settings
    from medusa_cli.support import console

    if session is not None:
        sessions.path_of(session)
    settings.from_options(sampling, draft, CHAT_TEMPERATURE)  # reports contradictions before a model is loaded
    from medusa_cli.chat.prompt_caches import PromptCaches
    from medusa_cli.chat.repl import COMMANDS, Repl
    from medusa_cli.chat.terminal import TerminalScreen, open_reader
    from medusa_cli.decoding.runtime import open_engine
    from medusa_cli.support.files import valid_text

    opened = open_engine(model, engine, draft, console.messages(), seeded=settings.is_seed(sampling.seed))
    temperature = settings.chat_temperature(opened.name)
    chosen = settings.from_options(sampling, draft, temperature, opened.sampling, stop_loops=True)
    # Shown before the first message is typed, not after.
    opened.chat_tokens([{"role": "user", "content": "Hello"}])
    reader = open_reader(list(COMMANDS))
    screen = TerminalScreen(reader.interactive, color_drafts)
    for line in first_screen(opened, chosen):
        screen.note(line)
    asked = valid_text(system) if system else None
    repl = Repl(opened, reader, screen, chosen, asked, PromptCaches(opened))
    with nullcontext() if session is None else sessions.resumed(repl, session):
        code = repl.run()
    if code:
        raise typer.Exit(code)


def first_screen(engine: Engine, settings: Settings) -> list[str]:
    """What a newcomer sees first: what is loaded, what drafts, and the few keys that matter."""
    from medusa_cli import __version__
    from medusa_cli.support.units import size

    model, heads, plan = engine.model, engine.heads, engine.plan
    others = ["prompt lookup"] * plan.lookup + ["recycling"] * plan.recycling
    where = "GPU" if model.gpu else "CPU"
    file = Path(model.path).name
    name = file if engine.name == file else f"{engine.name}: {file}"
    tree = "a tree grown in each step" if plan.dynamic else f"tree of {engine.tree_nodes} nodes"
    beside = "".join(f" and {other}" for other in others)
    if plan.draft_model is not None:
        drafting = f"{plan.draft_model.file.name} drafts, {tree} ({plan.tree_name}){beside}"
    elif plan.drafter is not None:
        own = "the model's own MTP layers draft" if engine.small is None else f"{plan.drafter.ref.path.name} drafts"
        drafting = f"{own}, {tree} ({plan.tree_name}){beside}"
    elif heads is not None and plan.tree is None:
        drafting = (
            "heads are not used: plain decoding was measured to be faster here (`medusa tune --show` has the figures)"
        )
        drafting += f"; drafting by {' and '.join(others)}" if others else ""
    elif heads is not None:
        drafting = f"{heads.head_count} {heads.kind} heads, {tree} ({plan.tree_name}){beside}"
    elif others:
        drafting = f"drafting by {' and '.join(others)} (`medusa train` adds heads)"
    else:
        drafting = "no drafts: plain decoding (`medusa train` makes draft heads for a model)"
    return [
        f"medusa {__version__} · {name} · {model.architecture}, {size(model.size_bytes)} · {where}",
        f"{drafting} · context {engine.n_ctx} · {settings.accept_kind}, temperature {settings.temperature:g}",
        "/help lists the commands. Ctrl-C stops an answer, Ctrl-D leaves.",
        "",
    ]
